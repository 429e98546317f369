from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from autotune.child.worker_look import WorkerLook, describe_affinity, look_at_worker, warn_of_affinity
from autotune.child.workload_loading import LoadedWorkload
from autotune.search.choices import USUAL_WORKER_THREADS
from autotune.workload import Workload

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="wants a system with masks of CPUs")
FOREVER = threading.Event()


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

    decoded = threading.Event()

    def meet_worker(self) -> None:
        if threading.active_count() < 6:
            thread = threading.Thread(target=self._decode, daemon=True)
            thread.start()
            self.decoded.wait()
            self.decoded.clear()

    def _decode(self) -> None:
        sum(range(1_000_000))
        self.decoded.set()
        FOREVER.wait()


def look(dataset: Dataset[Any]) -> WorkerLook:
    return look_at_worker(LoadedWorkload(parts=Workload(dataset=dataset)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="wants two CPUs")
def test_a_worker_that_is_bound_to_fewer_cpus_is_told() -> None:
    assert "A worker may use 1 of the" in (warn_of_affinity(look(Binding())) or "")


def test_a_worker_that_may_use_all_cpus_is_not_complained_about() -> None:
    assert warn_of_affinity(look(Numbers())) is None


def test_a_worker_of_plain_samples_has_no_threads_but_the_usual() -> None:
    found = look(Numbers())
    assert found.threads == USUAL_WORKER_THREADS
    assert found.memory_bytes > 0


def test_threads_that_a_worker_starts_are_counted() -> None:
    assert look(Threading()).threads > USUAL_WORKER_THREADS


def test_a_worker_that_fails_is_left_to_the_trials() -> None:
    assert look(TensorDataset()) == WorkerLook()


def test_the_cpus_that_are_left_are_named() -> None:
    words = describe_affinity(set(range(16)), {3, 1})
    assert "2 of the 16 CPUs" in words
    assert "(number 1, 3)" in words
