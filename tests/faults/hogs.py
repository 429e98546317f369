"""Datasets that take more and more of what everybody shares."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import Dataset

MIB = 2**20
SAMPLES = 4096
OBJECTS = 16_000  # touched by one sample: about two MiB of pages


class Leak(Dataset[torch.Tensor]):
    """Keeps every sample for ever: in a worker, in the training process, wherever it is asked.

    Args:
        bytes_each: What each sample leaves behind.
        seconds: What each costs.
    """

    def __init__(self, bytes_each: int, seconds: float) -> None:
        self._bytes = bytes_each
        self._seconds = seconds
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        self._kept.append(bytearray(b"x" * self._bytes))
        return torch.zeros(16)


class CopyOnWrite(Dataset[torch.Tensor]):
    """Holds many small Python objects, whose reference counts each worker writes, and so copies their pages.

    Args:
        objects: How many.
    """

    def __init__(self, objects: int) -> None:
        self._objects = [str(number) * 10 for number in range(objects)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        start = index * 977 * OBJECTS % len(self._objects)
        return torch.tensor([float(len(self._objects[start : start + OBJECTS]))])


class LargeSamples(Dataset[torch.Tensor]):
    """Samples of 8 MiB, of which a queue of batches fills any small /dev/shm."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(2 * MIB)


def make_leak() -> Leak:
    return Leak(MIB, 0.008)


def make_copy_on_write() -> CopyOnWrite:
    return CopyOnWrite(1_500_000)


def make_large() -> LargeSamples:
    return LargeSamples()
