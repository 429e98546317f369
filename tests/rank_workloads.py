"""Datasets that one rank of several meets otherwise than the others, for tests of several training processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from tests.misbehaving import SAMPLES, Honest


def is_rank_1() -> bool:
    return os.environ.get("RANK") == "1"


class OddInRank1(Honest):
    """Does something odd with its samples from the ninth on in rank 1, which has its first batch by then."""

    def __init__(self, deed: str, seconds: float = 0.0) -> None:
        super().__init__(samples=1024)
        self._deed = deed
        self._seconds = seconds
        self._read = 0

    def __getitem__(self, index: int) -> Any:
        self._read += 1
        if is_rank_1() and self._read > 8:
            self._do()
        return super().__getitem__(index)

    def _do(self) -> None:
        if self._deed == "raise":
            raise ValueError("rank 1 has no such sample")
        if self._deed == "kill":
            trainer = os.getppid() if get_worker_info() is not None else os.getpid()
            os.kill(trainer, signal.SIGKILL)
        time.sleep(self._seconds)


def make_odd(deed: str, seconds: float = 0.0) -> OddInRank1:
    return OddInRank1(deed, seconds)


class Broken(Honest):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("no rank has such a sample")


def make_broken() -> Broken:
    return Broken()


def make_sampled() -> DataLoader[Any]:
    dataset = Honest(SAMPLES)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=8, sampler=sampler)


def make_unshared() -> DataLoader[Any]:
    """Make a loader as for one process, which each rank goes through whole."""
    return DataLoader(Honest(SAMPLES), batch_size=8, shuffle=True)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[torch.Tensor]:
        rank, size = (distributed.get_rank(), distributed.get_world_size()) if self._is_shared else (0, 1)
        for number in range(rank, SAMPLES, size):
            yield torch.full((16,), float(number))


def make_stream(is_shared: bool = True) -> Stream:
    return Stream(is_shared=is_shared)


class Uneven(Stream):
    """Has one batch less for rank 1."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(SAMPLES - 8 * is_rank_1()):
            yield torch.full((16,), float(number))


def make_uneven() -> Uneven:
    return Uneven(is_shared=False)


def make_environment_step() -> Any:
    """Make a step that fails where the environment is not that of torchrun."""
    assert os.environ["LOCAL_RANK"] == os.environ["RANK"]
    assert (os.environ["MASTER_ADDR"], distributed.get_backend()) == ("127.0.0.1", "gloo")
    assert distributed.get_world_size() == int(os.environ["LOCAL_WORLD_SIZE"])
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])

    def step(batch: torch.Tensor) -> None:
        total = torch.ones(1)
        distributed.all_reduce(total)
        assert int(total) == distributed.get_world_size()

    return step
