"""A dataset that waits for each of its samples, as from a store across the network."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset

SAMPLES = 4096
READ_SECONDS = 0.002


class Reads(Dataset[torch.Tensor]):
    """Samples of 64 KiB, at 2 ms each."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(READ_SECONDS)
        return torch.full((128, 128), float(index))


def make_reads() -> Reads:
    """Make the dataset."""
    return Reads()
