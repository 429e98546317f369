from __future__ import annotations

import re
import time
from functools import partial

import torch
from torch.utils.data import Dataset

from autotune.child.probe_data import compare_workers
from autotune.child.probe_slow_samples import describe_slow_samples
from autotune.child.sample_reads import measure_read
from autotune.child.workload_loading import LoadedWorkload
from autotune.workload import Workload


class Uneven(Dataset[torch.Tensor]):
    """Takes 40 ms for each of some samples, and 1 ms for the others."""

    def __init__(self, slow: set[int], times: int = 1_000) -> None:
        self._slow = slow
        self._times = times  # that a slow one is slow

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self._slow and self._times > 0:
            self._times -= 1
            time.sleep(0.04)
        time.sleep(1e-3)
        return torch.tensor(index)


def describe(dataset: Uneven) -> str | None:
    reads = {index: measure_read(partial(dataset.__getitem__, index))[1] for index in range(len(dataset))}
    return describe_slow_samples(dataset, reads)


def test_slow_samples_are_named_by_index_with_their_share_of_the_time() -> None:
    words = describe(Uneven({7, 31})) or ""
    assert "2 of 39 that were read took" in words
    slow = {int(index): float(ms) for index, ms in re.findall(r"index (\d+): ([\d.]+) ms", words)}
    assert set(slow) == {7, 31}
    assert min(slow.values()) >= 40


def test_a_sample_that_was_slow_only_once_is_not_named() -> None:
    assert describe(Uneven({7}, times=1)) is None


def test_samples_of_which_many_are_slow_have_no_exceptions() -> None:
    assert describe(Uneven(set(range(0, 40, 2)))) is None


def test_the_first_sample_may_open_files() -> None:
    assert describe(Uneven({0})) is None


def test_the_seconds_come_from_the_reading_that_is_compared_with_workers() -> None:
    look = compare_workers(LoadedWorkload(parts=Workload(dataset=Uneven({9}))))
    assert look.differing == ()
    assert max(look.reads, key=lambda index: look.reads[index].seconds) == 9
