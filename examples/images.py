"""JPEG files on disk, decoded and augmented with Pillow, and a small convolutional network as the step.

The first run generates the files from seeded noise and shapes under `examples/.data/`; nothing is downloaded.

    dltune --dataset examples.images:make_dataset --step examples.images:make_step --batch-size 32
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import Dataset

FOLDER = Path(__file__).parent / ".data" / "images"
SIZE = 512  # pixels, width and height of a stored image
CROP = 128  # pixels, width and height of a training sample
CLASSES = 10

Sample = tuple[torch.Tensor, int]


class JpegFolder(Dataset[Sample]):
    """JPEG files of a folder, cropped and flipped at random.

    Args:
        paths: The files.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Sample:
        with Image.open(self._paths[index]) as image:
            picture = _augment(image.convert("RGB"))
        pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32).copy())
        return pixels.permute(2, 0, 1) / 255, index % CLASSES


def _augment(image: Image.Image) -> Image.Image:
    side = random.randint(SIZE // 2, SIZE)
    left, top = random.randint(0, SIZE - side), random.randint(0, SIZE - side)
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def make_dataset(images: int = 512) -> JpegFolder:
    """Make the dataset, writing its files the first time.

    Args:
        images: How many files it has.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / f"{number:05}.jpg" for number in range(images)]
    for number, path in enumerate(paths):
        if not path.exists():
            _write_image(number, path)
    return JpegFolder(paths)


def _write_image(number: int, path: Path) -> None:
    """Write one image that compresses about as well as a photograph."""
    numbers = np.random.default_rng(number)
    coarse = numbers.integers(0, 255, (SIZE // 8, SIZE // 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        corner = numbers.integers(0, SIZE - 64, 2)
        color = tuple(int(part) for part in numbers.integers(0, 255, 3))
        draw.ellipse((*corner.tolist(), *(corner + numbers.integers(16, 64, 2)).tolist()), fill=color)
    partial = path.with_suffix(".part")
    image.save(partial, format="JPEG", quality=88)
    partial.replace(path)


class SmallNet(nn.Module):
    """Three convolutions and a linear layer: small enough for a CPU, and a real network all the same."""

    def __init__(self) -> None:
        super().__init__()
        self._layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Score the classes for pixels of shape (batch, 3, height, width)."""
        scores: torch.Tensor = self._layers(pixels)
        return scores


def make_step(device: torch.device | None = None) -> Callable[[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """Make the training step that both dltune and `examples/train.py` run.

    Args:
        device: Where to train; None is the CPU.

    Returns:
        A function of one batch that trains on it and returns the loss, still on the device.
    """
    device = device or torch.device("cpu")
    model = SmallNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        pixels, labels = (part.to(device, non_blocking=True) for part in batch)
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = criterion(model(pixels), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return step
