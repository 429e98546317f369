from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from autotune.child.data_checks import compare_workers, describe_differing, describe_failure_rate, make_digest
from autotune.child.workload import LoadedWorkload
from autotune.request import Workload

SAMPLES = 32
BYTES = 4


class Samples(Dataset[Any]):
    """Delivers what a function makes of an index."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def find(make: Any, **parts: Any) -> list[int]:
    return list(compare_workers(LoadedWorkload(parts=Workload(dataset=Samples(make), **parts))).differing)


def augment(index: int) -> Any:
    return torch.rand(3) + index, {"crop": random.random(), "noise": np.random.normal()}


@pytest.mark.parametrize("make", [torch.tensor, augment, str, lambda index: np.array([index, "word"], dtype=object)])
def test_what_comes_out_of_workers_as_without_them_is_not_complained_about(make: Any) -> None:
    assert find(make) == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all samples read, on a busy machine as well."""
    for limit in ("READ_SECONDS", "WORKERS_READ_SECONDS"):
        monkeypatch.setattr(f"autotune.child.data_checks.{limit}", 30.0)


@pytest.mark.usefixtures("patient")
def test_data_that_depends_on_who_reads_is_found() -> None:
    assert find(lambda index: index + (get_worker_info() is not None and index % 2)) == list(range(1, SAMPLES, 2))


@pytest.mark.usefixtures("patient")
def test_a_file_that_forked_workers_share_is_found(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(index.to_bytes(BYTES, "big") for index in range(SAMPLES)))
    descriptor = os.open(path, os.O_RDONLY)

    def read(index: int) -> bytes:
        os.lseek(descriptor, index * BYTES, os.SEEK_SET)
        time.sleep(1e-3)
        return os.read(descriptor, BYTES)

    assert find(read)
    os.close(descriptor)


def test_chances_of_its_own_cannot_be_told_from_wrong_data_and_are_not_complained_about() -> None:
    own = random.Random(0)
    assert find(lambda index: own.random()) == []


@pytest.mark.parametrize("often", [0.02, 0.5])
def test_a_choice_of_two_that_a_dataset_draws_by_itself_is_not_complained_about(often: float) -> None:
    for seed in range(5):
        own = random.Random(seed)
        assert find(lambda index, own=own: own.random() < often) == []


def test_the_global_generators_are_left_as_they_were() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()
    find(augment)
    assert torch.equal(before[0], torch.get_rng_state())
    assert random.getstate() == before[1]
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before[2]


def wait_and_tell(index: int) -> bool:
    time.sleep(0.1)
    return get_worker_info() is None


def test_samples_that_raise_or_take_long_are_not_compared() -> None:
    def fail(index: int) -> Any:
        raise ValueError(index)

    assert find(fail) == []
    assert find(wait_and_tell) == []


def test_what_has_an_order_of_its_own_is_not_compared() -> None:
    assert find(lambda index: get_worker_info() is None, sampler=["a", "b"]) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        (np.zeros(2), np.ones(2)),
        (np.array([[1, None]], dtype=object), np.array([[1, 2]], dtype=object)),
        ({"a": 1}, {"b": 1}),
        ([1, [2]], [1, [3]]),
        ("a", b"a"),
        (None, 0),
        (Samples(1), Samples(2)),
    ],
)
def test_a_digest_tells_different_samples_apart_and_equal_ones_not(one: Any, other: Any) -> None:
    assert make_digest(one) == make_digest(one)
    assert make_digest(one) != make_digest(other)


def test_the_samples_that_differ_are_named() -> None:
    words = describe_differing([3, 17, 18, 40])
    assert words is not None
    assert "4 came out differently (index 3, 17, 18, ...)" in words
    assert describe_differing([]) is None


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
