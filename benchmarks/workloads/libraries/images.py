"""Images in folders, as those who classify and detect load them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.workloads.libraries.made_once import (
    BATCH,
    CLASSES,
    SAMPLES,
    SIDE,
    USUAL,
    Jpegs,
    find_jpeg,
    find_pictures,
    make_once,
)

YOLO_SIDE: Final = 160  # pixels; four images make one, and that costs
YOLO_WORKERS: Final = 8  # Ultralytics' default
TIMM_WORKERS: Final = 4  # that of timm's train.py


def timm_multi_epochs(**settings: Any) -> Any:
    """Timm's loader that never restarts its workers."""
    from timm.data.loader import MultiEpochsDataLoader

    return MultiEpochsDataLoader(Jpegs(), **USUAL | settings)


def timm_dataset() -> Any:
    """Timm's dataset of a folder, with the transform it trains with."""
    from timm.data import ImageDataset, create_transform

    return ImageDataset(str(find_pictures()), transform=create_transform(SIDE, is_training=True))


def timm_created(
    batch_size: int = BATCH,
    num_workers: int = TIMM_WORKERS,
    pin_memory: bool = False,
    persistent_workers: bool = True,
) -> Any:
    """What timm's `create_loader` makes, as its train.py calls it without a GPU."""
    from timm.data import ImageDataset, create_loader

    return create_loader(
        ImageDataset(str(find_pictures())),
        input_size=(3, SIDE, SIDE),
        batch_size=batch_size,
        is_training=True,
        use_prefetcher=False,
        num_workers=num_workers,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        device=torch.device("cpu"),
    )


def torchvision_mixup(**settings: Any) -> DataLoader[Any]:
    """Torchvision's folder and second transforms, with batches mixed where they are collated."""
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return DataLoader(ImageFolder(find_pictures(), transform), collate_fn=_mix_batch, **USUAL | settings)


def _mix_batch(samples: list[Any]) -> Any:
    from torchvision.transforms import v2

    return v2.MixUp(num_classes=CLASSES)(*default_collate(samples))


def albumentations_opencv() -> Dataset[Any]:
    """Images read by OpenCV and changed by albumentations."""
    return OpenCvImages()


class OpenCvImages(Dataset[Any]):
    """Files of a folder, as OpenCV reads them."""

    def __init__(self) -> None:
        os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
        import albumentations
        from albumentations.pytorch import ToTensorV2

        self.places = sorted(map(str, find_pictures().glob("*/*.jpg")))
        self.transform = albumentations.Compose(
            [
                albumentations.RandomResizedCrop(size=(SIDE, SIDE)),
                albumentations.HorizontalFlip(),
                albumentations.Normalize(),
                ToTensorV2(),
            ]
        )

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        import cv2

        image = cv2.cvtColor(cv2.imread(self.places[index]), cv2.COLOR_BGR2RGB)
        return self.transform(image=image)["image"]


def ultralytics_built(batch_size: int = BATCH, num_workers: int = YOLO_WORKERS) -> Any:
    """What Ultralytics' `build_dataloader` makes, which takes no more than these settings."""
    dataset = _make_yolo_dataset(batch_size)
    from ultralytics.data.build import build_dataloader

    return build_dataloader(dataset, batch_size, num_workers)


def ultralytics_infinite(**settings: Any) -> Any:
    """Ultralytics' loader that never ends, and never restarts its workers."""
    dataset = _make_yolo_dataset(BATCH)
    from ultralytics.data.build import InfiniteDataLoader

    return InfiniteDataLoader(dataset=dataset, collate_fn=dataset.collate_fn, **USUAL | settings)


def _make_yolo_dataset(batch_size: int) -> Any:
    os.environ |= {"YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false", "YOLO_CONFIG_DIR": tempfile.gettempdir()}
    from ultralytics.cfg import get_cfg
    from ultralytics.data.build import build_yolo_dataset

    folder = make_once("yolo", _write_yolo)
    data = {"names": dict(enumerate("abcd")), "nc": CLASSES, "channels": 3}
    return build_yolo_dataset(get_cfg(overrides={"imgsz": YOLO_SIDE}), str(folder / "images"), batch_size, data)


def _write_yolo(folder: Path) -> None:
    for kind in ("images", "labels"):
        (folder / kind).mkdir()
    for index in range(SAMPLES):
        (folder / "images" / f"{index:05}.jpg").write_bytes(find_jpeg(index))
        (folder / "labels" / f"{index:05}.txt").write_text(f"{index % CLASSES} 0.5 0.5 0.25 0.25\n")
