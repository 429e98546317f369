"""A dataset that reads a file, and notes what of it came from the storage."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import Dataset

from autotune.child.sample_reads import measure_read

CHUNK = 64 * 1024


class Reading(Dataset[torch.Tensor]):
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._from_storage = 0

    def __len__(self) -> int:
        return (self._folder / "more" / "data.bin").stat().st_size // CHUNK

    def __getitem__(self, index: int) -> torch.Tensor:
        content, seen = measure_read(lambda: self._read(index))
        self._from_storage += seen.storage_bytes
        (self._folder / "storage_bytes").write_text(str(self._from_storage))
        return torch.tensor(list(content[:16]))

    def _read(self, index: int) -> bytes:
        with (self._folder / "more" / "data.bin").open("rb") as stream:
            stream.seek(index * CHUNK)
            return stream.read(CHUNK)


def make_reading(folder: str) -> Reading:
    return Reading(folder)
