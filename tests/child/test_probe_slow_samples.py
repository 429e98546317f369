from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset

from autotune.child.probe_data import compare_workers
from autotune.child.probe_slow_samples import describe_slow_samples
from autotune.child.sample_reads import SampleRead
from autotune.child.workload_loading import LoadedWorkload
from autotune.workload import Workload


class Uneven(Dataset[torch.Tensor]):
    """Takes 40 ms for each of some samples, and 1 ms for the others."""

    def __init__(self, slow: set[int]) -> None:
        self._slow = slow

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self._slow:
            time.sleep(0.04)
        time.sleep(1e-3)
        return torch.tensor(index)


def describe(slow: set[int], dataset: Uneven) -> str | None:
    """Say what is said of a first reading in which some samples took 40 ms, when the dataset is read again."""
    reads = {index: SampleRead(0.041 if index in slow else 1e-3) for index in range(len(dataset))}
    return describe_slow_samples(dataset, reads)


def test_slow_samples_are_named_by_index_with_their_share_of_the_time() -> None:
    words = describe({7, 31}, Uneven({7, 31})) or ""
    assert "2 of 39 that were read took 69 % of the time" in words
    assert "index 7: 41.0 ms, index 31: 41.0 ms" in words


def test_a_sample_that_was_slow_only_once_is_not_named() -> None:
    assert describe({7}, Uneven(set())) is None


def test_samples_of_which_many_are_slow_have_no_exceptions() -> None:
    slow = set(range(0, 40, 2))
    assert describe(slow, Uneven(slow)) is None


def test_the_first_sample_may_open_files() -> None:
    assert describe({0}, Uneven({0})) is None


def test_the_seconds_come_from_the_reading_that_is_compared_with_workers() -> None:
    look = compare_workers(LoadedWorkload(parts=Workload(dataset=Uneven({9}))))
    assert look.differing == ()
    assert max(look.reads, key=lambda index: look.reads[index].seconds) == 9
