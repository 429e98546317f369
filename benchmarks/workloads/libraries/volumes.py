"""Images of three dimensions, as MONAI loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.workloads.libraries.made_once import SAMPLES, USUAL, Jpegs, make_once

VOLUMES: Final = 64  # files; each is used several times in an epoch
VOLUME_SIDE: Final = 32  # voxels


def monai_threads(**settings: Any) -> Any:
    """MONAI's loader that reads ahead in a thread."""
    from monai.data import ThreadDataLoader

    return ThreadDataLoader(Jpegs(), **USUAL | settings)


def monai_cached(**settings: Any) -> Any:
    """MONAI's dataset that keeps what its first transforms give, and its loader."""
    from monai import transforms
    from monai.data import CacheDataset, DataLoader

    places = sorted(make_once("volumes", _write_volumes).iterdir())
    data = [{"image": str(places[index % VOLUMES])} for index in range(SAMPLES)]
    steps = [
        transforms.LoadImaged("image"),
        transforms.EnsureChannelFirstd("image", channel_dim="no_channel"),
        transforms.RandFlipd("image", prob=0.5),
        transforms.RandAffined("image", prob=1.0, rotate_range=0.2, padding_mode="zeros"),
    ]
    return DataLoader(CacheDataset(data, transforms.Compose(steps), progress=False), **USUAL | settings)


def _write_volumes(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(VOLUMES):
        np.save(folder / f"{number:03}.npy", generator.random((VOLUME_SIDE,) * 3, dtype=np.float32))
