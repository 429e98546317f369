from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Dataset, IterableDataset

from autotune.child.probe_data import describe_failure_rate
from autotune.child.workload_loading import LoadedWorkload
from autotune.workload import Workload


class Damaged(Dataset[torch.Tensor]):
    """Holds 500 samples, some of which raise."""

    def __init__(self, damaged: set[int]) -> None:
        self._damaged = damaged
        self.asked = 0

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        if index in self._damaged:
            raise ValueError("bits are out of range")
        return torch.zeros(1)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        raise ValueError("not now")


def load(dataset: Dataset[torch.Tensor]) -> LoadedWorkload:
    return LoadedWorkload(parts=Workload(dataset=dataset))


def test_damaged_samples_are_counted_and_one_is_named() -> None:
    words = describe_failure_rate(load(Damaged({7, 400}))) or ""
    assert words.startswith("About 2 of 500 samples raise (one is sample ")
    assert "without workers" in words


def test_where_all_samples_raise_it_is_the_dataset_and_that_is_known_after_a_few() -> None:
    dataset = Damaged(set(range(500)))
    assert describe_failure_rate(load(dataset)) is None
    assert dataset.asked == 20


def test_where_no_sample_raises_by_itself_nothing_is_said_of_samples() -> None:
    assert describe_failure_rate(load(Damaged(set()))) is None


def test_what_cannot_be_asked_sample_by_sample_is_left_alone() -> None:
    assert describe_failure_rate(load(Stream())) is None
    dataset = Damaged({1})
    assert describe_failure_rate(LoadedWorkload(parts=Workload(dataset=dataset, sampler=[1, 2]))) is None
    assert dataset.asked == 0
