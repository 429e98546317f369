"""The workload of PyTorch's data-loading tutorial: 512 samples that take 5 ms each, of 3 x 224 x 224.

dltune --dataset examples.tutorial:make_dataset --batch-size 32 --step-time 10ms --trials 40
"""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset


class SlowDataset(Dataset[tuple[torch.Tensor, int]]):
    """Samples that are waited for, as from a disk or an object store.

    Args:
        samples: Length of the dataset.
        seconds: Waiting time for each sample.
    """

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples = samples
        self._seconds = seconds

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self._seconds)
        return torch.randn(3, 224, 224), index % 10


def make_dataset(samples: int = 512, seconds: float = 0.005) -> SlowDataset:
    """Make the tutorial's dataset."""
    return SlowDataset(samples, seconds)
