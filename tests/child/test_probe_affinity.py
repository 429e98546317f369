from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from autotune.child.probe_affinity import describe_affinity, warn_of_affinity
from autotune.child.workload_loading import LoadedWorkload
from autotune.workload import Workload

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="wants a system with masks of CPUs")


class Bound(Dataset[torch.Tensor]):
    """Binds its worker to one CPU, as some libraries do when they are first used."""

    def __init__(self, binds: bool) -> None:
        self._binds = binds

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._binds and get_worker_info() is not None:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return torch.tensor(index)


def warn(dataset: Dataset[Any]) -> str | None:
    return warn_of_affinity(LoadedWorkload(parts=Workload(dataset=dataset)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="wants two CPUs")
def test_a_worker_that_is_bound_to_fewer_cpus_is_told() -> None:
    assert "A worker may use 1 of the" in (warn(Bound(True)) or "")


def test_a_worker_that_may_use_all_cpus_is_not_complained_about() -> None:
    assert warn(Bound(False)) is None


def test_a_worker_that_fails_is_left_to_the_trials() -> None:
    assert warn(torch.utils.data.TensorDataset()) is None


def test_the_cpus_that_are_left_are_named() -> None:
    words = describe_affinity(set(range(16)), {3, 1})
    assert "2 of the 16 CPUs" in words
    assert "(number 1, 3)" in words
