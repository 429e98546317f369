"""Arrays in one file or store, opened by each worker for itself."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.workloads.libraries.made_once import SAMPLES, SIDE, decode, find_jpeg, make_once

TOKENS: Final = 1 << 22
BLOCK: Final = 1024  # tokens of a sample


def h5py_images() -> Dataset[Any]:
    """Compressed images of an HDF5 file."""
    return StoredImages(make_once("h5py", _write_h5py), "h5py")


def zarr_images() -> Dataset[Any]:
    """Compressed images of a Zarr store."""
    return StoredImages(make_once("zarr", _write_zarr), "zarr")


def memory_mapped_tokens() -> Dataset[Any]:
    """Tokens of a file that is mapped into memory, cut into blocks at any place: there is next to nothing to load."""
    return Tokens(make_once("tokens", _write_tokens))


class StoredImages(Dataset[Any]):
    """Images of an array that is opened where the first of them is asked for."""

    def __init__(self, folder: Path, library: str) -> None:
        self.folder = folder
        self.library = library

    @cached_property
    def images(self) -> Any:
        """The array, open."""
        if self.library == "zarr":
            import zarr

            return zarr.open_array(str(self.folder / "images.zarr"), mode="r")
        import h5py

        return h5py.File(self.folder / "images.h5", "r")["images"]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.images[index]).permute(2, 0, 1)


class Tokens(Dataset[Any]):
    """Blocks of tokens, and what follows each of them."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.memmap(folder / "tokens.bin", dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return len(self.tokens) // BLOCK - 1

    def __getitem__(self, index: int) -> Any:
        block = torch.from_numpy(self.tokens[index * BLOCK : (index + 1) * BLOCK + 1].astype(np.int64))
        return block[:-1], block[1:]


def _write_h5py(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        images = file.create_dataset(
            "images", (SAMPLES, SIDE, SIDE, 3), np.uint8, chunks=(1, SIDE, SIDE, 3), compression="gzip"
        )
        for index in range(SAMPLES):
            images[index] = _decode_pixels(index)


def _write_zarr(folder: Path) -> None:
    import zarr

    images = zarr.create_array(
        str(folder / "images.zarr"), shape=(SAMPLES, SIDE, SIDE, 3), chunks=(1, SIDE, SIDE, 3), dtype="uint8"
    )
    for index in range(SAMPLES):
        images[index] = _decode_pixels(index)


def _decode_pixels(index: int) -> Any:
    return decode(find_jpeg(index)).permute(1, 2, 0).numpy()


def _write_tokens(folder: Path) -> None:
    np.random.default_rng(0).integers(0, 50_000, TOKENS, dtype=np.uint16).tofile(folder / "tokens.bin")
