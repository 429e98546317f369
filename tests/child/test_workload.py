from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune.child.loader import StoppableSampler
from autotune.child.loader import build_loader
from autotune.child.stopping import align_to_workers
from autotune.child.workload import LoadedWorkload, wrap_dataset
from autotune.errors import UsageError
from autotune.workload import Workload
from tests.builders import make_config


@given(batches=st.integers(0, 1000), workers=st.integers(0, 64), epoch_batches=st.integers(0, 10**6))
def test_an_epoch_cut_short_ends_on_a_round_as_full_as_that_of_a_whole_one(
    batches: int, workers: int, epoch_batches: int
) -> None:
    completed = align_to_workers(batches, workers, epoch_batches)
    assert batches <= completed < batches + max(1, workers)
    assert (completed - epoch_batches) % max(1, workers) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_delivers_what_is_under_way_and_ends(workers: int) -> None:
    workload = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(320, 1))))
    loader = build_loader(workload, make_config(workers, batch_size=8))
    delivered = 0
    for _ in loader:
        delivered += 1
        if delivered == 3:
            loader.close(epoch_batches=40)
    assert delivered == loader.index_source.batches
    assert delivered % max(1, workers) == 0
    assert 3 <= delivered <= 3 + 3 * max(1, workers)
    assert loader.index_source.closed


def test_a_loader_opened_again_runs_a_whole_epoch() -> None:
    loader = build_loader(LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(32, 1)))), make_config(0))
    loader.index_source.open(max_batches=0)
    assert list(loader) == []
    loader.index_source.open()
    assert len(list(loader)) == 1


INDICES = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("make_batch", [list, tuple, np.array, torch.tensor, array.array])
def test_a_batch_of_indices_counts_as_many_samples_whatever_it_is_made_of(make_batch: Callable[..., Any]) -> None:
    batches: list[Any] = [
        make_batch("l", batch) if make_batch is array.array else make_batch(batch) for batch in INDICES
    ]
    workload = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(9, 1)), batch_sampler=batches))
    loader = build_loader(workload, make_config(0, batch_size=None))
    assert [len(samples) for (samples,) in loader] == [3, 3, 3]
    assert loader.index_source.count_samples(2) == 6


@pytest.mark.parametrize("index", [7, "seven", b"seven", torch.tensor(7), np.int64(7), {"row": 7, "column": 1}, None])
def test_a_single_index_counts_as_one_sample(index: object) -> None:
    sampler = StoppableSampler([index, index])
    assert list(sampler) == [index, index]
    assert sampler.count_samples(2) == 2


class WithoutLength(Dataset[torch.Tensor]):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index])


@pytest.mark.parametrize("order", [{"sampler": [4, 2]}, {"batch_sampler": [[4, 2]]}])
def test_a_dataset_without_a_length_is_loaded_in_the_order_of_its_sampler(order: dict[str, Any]) -> None:
    workload = wrap_dataset(Workload(dataset=WithoutLength(), **order), "pkg.data:make")
    loader = build_loader(workload, make_config(0, batch_size=None if "batch_sampler" in order else 2))
    assert [batch.flatten().tolist() for batch in loader] == [[4, 2]]


def test_a_dataset_without_a_length_or_a_sampler_is_refused() -> None:
    with pytest.raises(UsageError, match="it lacks __len__"):
        wrap_dataset(Workload(dataset=WithoutLength()), "pkg.data:make")


class Prefetches:
    """Wraps a loader as timm's PrefetchLoader does."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class Streams:
    """Can only be gone through, as a loader of another library."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_what_wraps_a_loader_is_refused_with_the_way_to_the_loader() -> None:
    wrapped = Prefetches(DataLoader(TensorDataset(torch.zeros(8, 1))))
    with pytest.raises(UsageError, match=r"test_workload\.Prefetches, which holds a DataLoader: `\.loader`"):
        wrap_dataset(wrapped, "pkg:make")


def test_what_can_only_be_gone_through_is_refused_with_what_to_return_instead() -> None:
    with pytest.raises(UsageError, match=r"test_workload\.Streams, which can only be gone through.*IterableDataset"):
        wrap_dataset(Streams(), "pkg:make")
