"""Workloads that differ between ranks or are sharded by libraries, for tests of several training processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from tests.misbehaving import SAMPLES, Honest


def is_rank_1() -> bool:
    return os.environ.get("RANK") == "1"


class OddInRank1(Honest):
    """Misbehaves from the ninth sample on in rank 1, which has its first batch by then."""

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
            os.kill(os.getpid() if get_worker_info() is None else os.getppid(), signal.SIGKILL)
        time.sleep(self._seconds)


class Broken(Honest):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("no rank has such a sample")


def make_sampled() -> DataLoader[Any]:
    dataset = Honest(SAMPLES)
    return DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))


def make_unshared() -> DataLoader[Any]:
    """Make a loader for one process, which each rank iterates in full."""
    return DataLoader(Honest(SAMPLES), batch_size=8, shuffle=True)


class Stream(IterableDataset[torch.Tensor]):
    """Samples that are sharded by rank, as by the user's own code."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(distributed.get_rank(), SAMPLES, distributed.get_world_size()):
            yield torch.full((16,), float(number))


class Uneven(Stream):
    """Has one batch less for rank 1."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(SAMPLES - 8 * is_rank_1()):
            yield torch.full((16,), float(number))


def make_environment_step() -> Any:
    """Make a step that fails if the environment differs from that of torchrun."""
    assert os.environ["LOCAL_RANK"] == os.environ["RANK"]
    assert (os.environ["MASTER_ADDR"], distributed.get_backend()) == ("127.0.0.1", "gloo")
    assert distributed.get_world_size() == int(os.environ["LOCAL_WORLD_SIZE"])
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    store, rank, _ = next(rendezvous("env://"))  # of a group of the user's own
    if rank == 0:
        store.set("greeting", "hello")
    assert store.get("greeting") == b"hello"

    def step(batch: torch.Tensor) -> None:
        assert store is not None  # the step keeps rank 0's server until the other ranks have read
        total = torch.ones(1)
        distributed.all_reduce(total)
        assert int(total) == distributed.get_world_size()

    return step
