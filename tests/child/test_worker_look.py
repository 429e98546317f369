from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import torch
from autotune.child.worker_look import WorkerLook, describe_affinity, look_at_worker, warn_of_affinity
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from autotune.child.workload_loading import LoadedWorkload
from autotune.search.choices import THREADED_CPU
from autotune.workload import Workload

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="wants a system with masks of CPUs")


class Numbers(Dataset[torch.Tensor]):
    """Plain numbers; in a worker, the first of them does something to its process."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            self.meet_worker()
        return torch.tensor(index)

    def meet_worker(self) -> None:
        """Leave it as it is."""


class Binding(Numbers):
    """Binds its worker to one CPU, as some libraries do when they are first used."""

    def meet_worker(self) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Threading(Numbers):
    """Starts threads that compute, as libraries do that decode on several."""

    helpers: ClassVar[list[ThreadPoolExecutor]] = []

    def meet_worker(self) -> None:
        if not self.helpers:
            self.helpers.append(ThreadPoolExecutor(1))
        self.helpers[0].submit(burn).result()
        burn()


class Computing(Numbers):
    """Computes in the thread that loads."""

    def meet_worker(self) -> None:
        burn()


def burn() -> None:
    sum(range(500_000))


def look(dataset: Dataset[Any]) -> WorkerLook:
    return look_at_worker(LoadedWorkload(parts=Workload(dataset=dataset)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="wants two CPUs")
def test_a_worker_that_is_bound_to_fewer_cpus_is_told() -> None:
    assert "A worker may use 1 of the" in (warn_of_affinity(look(Binding())) or "")


def test_a_worker_that_may_use_all_cpus_is_not_complained_about() -> None:
    assert warn_of_affinity(look(Numbers())) is None


def test_the_threads_that_send_batches_compute_little() -> None:
    found = look(Computing())
    assert found.threads_cpu < THREADED_CPU
    assert found.memory_bytes > 0


def test_threads_of_libraries_compute_for_a_good_part() -> None:
    assert look(Threading()).threads_cpu >= THREADED_CPU


def test_a_worker_that_fails_is_left_to_the_trials() -> None:
    assert look(TensorDataset()) == WorkerLook()


def test_the_cpus_that_are_left_are_named() -> None:
    words = describe_affinity(set(range(16)), {3, 1})
    assert "2 of the 16 CPUs" in words
    assert "(number 1, 3)" in words
