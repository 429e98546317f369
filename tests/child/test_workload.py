"""A dataset, loader or one of several becomes a workload, whose epochs can be ended early."""

from __future__ import annotations

import array
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from autotune.child.custom_loaders import record_call, replace_new
from autotune.child.loader import StoppableSampler, build_loader
from autotune.child.sample_reader import find_epoch_state
from autotune.child.stopping_rule import align_to_workers
from autotune.child.workload import LoadedWorkload, find_datasets, load_workload, wrap_dataset
from autotune.errors import UsageError
from autotune.online.attach import autopilot
from autotune.request import Workload, WorkloadRequest
from tests import custom_loaders
from tests.builders import make_config


@given(batches=st.integers(0, 1000), workers=st.integers(0, 64), epoch_batches=st.integers(0, 10**6))
def test_a_shortened_epoch_ends_with_as_many_batches_in_its_last_round_as_a_whole_one(
    batches: int, workers: int, epoch_batches: int
) -> None:
    completed = align_to_workers(batches, workers, epoch_batches)
    assert batches <= completed < batches + max(1, workers)
    assert (completed - epoch_batches) % max(1, workers) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_delivers_the_batches_in_flight_and_ends(workers: int) -> None:
    workload = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(320, 1))))
    loader = build_loader(workload, make_config(workers, batch_size=8))
    delivered = 0
    for _ in loader:
        delivered += 1
        if delivered == 3:
            loader.index_source.close(workers, 40)
    assert delivered == loader.index_source.batches
    assert delivered % max(1, workers) == 0
    assert 3 <= delivered <= 3 + 3 * max(1, workers)
    assert loader.index_source.closed


def test_a_loader_that_accelerate_has_prepared_has_the_batch_size_of_its_batch_sampler() -> None:
    data = TensorDataset(torch.arange(10))
    inner = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, drop_last=True))
    outer = DataLoader(data)
    outer.base_dataloader = inner  # as accelerate's class has
    workload = wrap_dataset(outer, "data:make")
    assert workload.prepared_by == "accelerate"
    assert workload.baseline is not None
    assert workload.baseline.dataloader.batch_size == 4
    for size, expected in ((4, [[0, 1, 2, 3], [4, 5, 6, 7]]), (5, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])):
        rebuilt = build_loader(workload, make_config(0, batch_size=size))
        assert [batch.tolist() for (batch,) in rebuilt] == expected


def test_a_batch_sampler_that_the_user_gave_a_loader_is_kept() -> None:
    data = TensorDataset(torch.arange(10))
    for cls in (DataLoader, custom_loaders.Doubling):
        batches = BatchSampler(SequentialSampler(data), 4, drop_last=True)
        with replace_new(record_call):
            loader = cls(data, batch_sampler=batches)
        workload = wrap_dataset(loader, "data:make", ends=True)
        assert workload.baseline is not None
        assert workload.baseline.dataloader.batch_size is None
        assert len(list(build_loader(workload, make_config(0, batch_size=None)))) == 2


def test_switches_of_a_loader_that_are_none_are_false_as_in_torch() -> None:
    unset: dict[str, Any] = {"pin_memory": None, "persistent_workers": None, "in_order": None}
    baseline = wrap_dataset(DataLoader(TensorDataset(torch.zeros(3)), num_workers=1, **unset), "data:make").baseline
    assert baseline is not None
    settings = baseline.dataloader
    assert (settings.pin_memory, settings.persistent_workers, settings.in_order) == (False, False, False)


def test_a_setting_of_a_loader_that_is_too_large_is_refused_with_its_limit() -> None:
    with pytest.raises(UsageError, match=r"The DataLoader's batch_size: .* 2147483647, not 2147483648\. Construct it"):
        wrap_dataset(DataLoader(TensorDataset(torch.zeros(3)), batch_size=2**31), "data:make")


def test_a_loader_that_the_autopilot_tunes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a loader that autotune\.autopilot tunes: return the loader itself"):
        wrap_dataset(autopilot(DataLoader(TensorDataset(torch.zeros(3)))), "data:make")


def test_each_of_many_datasets_that_refer_to_each_other_is_found_once() -> None:
    datasets: list[Any] = [custom_loaders.Numbers() for _ in range(8)]
    for one in datasets:
        one.datasets = datasets
    assert [id(one) for _, one in find_datasets(datasets[0])] == list(map(id, datasets))


class Remote:
    """Refers to a dataset in another process: it has any attribute, and some raise."""

    def __getattr__(self, name: str) -> Any:
        if name in ("iterables", "batch_size", "set_batch_size", "num_shards", "set_epoch"):
            raise ConnectionError(f"{name} was asked for after the other process had ended")
        return lambda *arguments, **named: None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return range(4)[index]


def test_an_object_that_has_any_attribute_is_a_dataset_even_if_some_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("user_data")
    remote: Any = Remote()
    module.make = lambda: remote  # type: ignore[attr-defined]  # as the user's module has it
    monkeypatch.setitem(sys.modules, "user_data", module)
    workload = load_workload(WorkloadRequest(dataset="user_data:make"))
    assert workload.parts.dataset is remote
    assert (workload.fixed, find_epoch_state(workload, str)) == ({}, None)


class Endless(IterableDataset[int]):
    def __len__(self) -> int:
        raise ValueError("a stream has no length")

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_a_length_that_raises_any_error_is_unknown() -> None:
    assert wrap_dataset(Endless(), "data:make").expected_samples is None


INDICES = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("make_batch", [list, tuple, np.array, torch.tensor, array.array])
def test_a_batch_of_indices_of_any_type_counts_its_samples(make_batch: Callable[..., Any]) -> None:
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


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (WithoutLength(), r"WithoutLength, which is not a Dataset \(with __getitem__ and __len__\)"),
        (custom_loaders.Restarting(), r"Restarting, which contains a DataLoader: `\._loader`\. .*--loader"),
        (custom_loaders.Wraps(), r"custom_loaders\.Wraps, which contains a DataLoader: `\.pipeline`\. .*--loader"),
        (custom_loaders.Batches(), r"custom_loaders\.Batches, which can only be iterated\..*IterableDataset.*--loader"),
        (Workload(dataset={"train": custom_loaders.Numbers()}), "returned a dict as one dataset"),  # type: ignore[arg-type]
        (custom_loaders.Numbers(0), "of length 0: there is nothing to load"),
        (None, "returned None, which is not a Dataset"),
    ],
)
def test_anything_else_than_a_dataset_or_loader_is_refused(made: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wrap_dataset(made, "pkg:make")


# Several loaders or datasets


def load(name: str, split: str | None = None, *, is_loader: bool = False) -> LoadedWorkload:
    return load_workload(WorkloadRequest(dataset=f"tests.custom_loaders:{name}", split=split, is_loader=is_loader))


def test_arguments_for_what_is_no_function_are_refused() -> None:
    request = WorkloadRequest(dataset="tests.custom_loaders:DATASETS", dataset_args={"root": "/b"})
    with pytest.raises(UsageError, match=r"--arg root: tests\.custom_loaders:DATASETS is a dict, not a function"):
        load_workload(request)


@pytest.mark.parametrize(
    ("name", "is_loader", "words"),
    [
        ("make_several", False, r"returned a dict with 'val', 'train'\. Choose one with --split train\."),
        ("make_pair", False, r"returned a tuple with '0', '1'\. Choose one with --split 0\."),
        ("DATASETS", False, r"returned a dict with 'train', 'val'\. Choose one with --split train\."),
        ("make_several_of_settings", True, r"a dict with 'train', 'val'\. Choose one with --split train"),
    ],
)
def test_several_are_refused_with_the_names_to_choose_from(name: str, is_loader: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name, is_loader=is_loader)


@pytest.mark.parametrize(("name", "split", "samples"), [("make_pair", "1", 20), ("DATASETS", "train", 60)])
def test_the_one_of_the_given_name_is_tuned(name: str, split: str, samples: int) -> None:
    assert load(name, split).expected_samples == samples


@pytest.mark.parametrize(
    ("name", "is_loader", "split", "batches"),
    [
        ("make_several", False, "train", 15),
        ("make_several_of_settings", True, "val", 3),
    ],
)
def test_a_custom_loader_of_several_is_rebuilt(name: str, is_loader: bool, split: str, batches: int) -> None:
    loader = build_loader(load(name, split, is_loader=is_loader), make_config(0, batch_size=4))
    assert isinstance(loader, custom_loaders.Doubling) is (split == "train")
    assert len(list(loader)) == batches


@pytest.mark.parametrize(
    ("name", "is_loader", "split", "words"),
    [
        ("make_several", False, "trian", r"^--split trian: .* 'val', 'train'\. Choose one of these\."),
        ("make_positional", False, "train", r"^--split train: .*Doubling, not several .* Omit --split\."),
        ("ONE_LIST", False, "0", r"^--split 0: .* a list, not several .* Omit --split\."),
        ("Batches", True, "train", r"^--split train: .* Omit --split\."),
    ],
)
def test_a_name_of_nothing_is_refused(name: str, is_loader: bool, split: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(name, split, is_loader=is_loader)


def test_a_list_of_samples_is_one_dataset() -> None:
    assert load("ONE_LIST").expected_samples == 4
