from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Sampler, Subset, TensorDataset

from autotune.child.sample_reader import (
    SampleReader,
    find_costly_lines,
    find_epoch_state,
    hash_sample,
)
from autotune.child.workload import LoadedWorkload
from autotune.request import Workload
from tests.builders import GIB, MIB


class Samples(Dataset[Any]):
    """Delivers a function of the index."""

    def __init__(self, make: Any, samples: int = 500) -> None:
        self._make, self._samples = make, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


class Stream(IterableDataset[torch.Tensor]):
    """Delivers samples with a pause before each."""

    def __init__(self, samples: int = 40, pause: float = 0.0) -> None:
        self._samples, self._pause = samples, pause

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self._samples):
            time.sleep(self._pause)
            yield torch.tensor([number])


def load(dataset: Dataset[Any], **parts: Any) -> LoadedWorkload:
    return LoadedWorkload(parts=Workload(dataset=dataset, **parts))


def read(dataset: Dataset[Any], **parts: Any) -> SampleReader:
    reader = SampleReader(load(dataset, **parts))
    reader.read()
    return reader


def test_samples_all_over_the_dataset_are_hashed_with_the_same_random_numbers_in_every_reading() -> None:
    augmented = Samples(lambda index: (torch.rand(3) + index, random.random(), np.random.normal()))
    first, second = read(augmented), read(augmented)
    shared = first.digests.keys() & second.digests.keys()  # a busy machine reads fewer in the time
    assert len(shared) > 8
    assert all(first.digests[index] == second.digests[index] for index in shared)
    assert list(first.digests)[:2] == [0, 7]
    assert len(set(first.digests.values())) == len(first.digests)


def draw(often: float) -> Samples:
    own = random.Random(0)
    return Samples(lambda index: own.random() < often)


def fail(index: int) -> Any:
    raise ValueError(index)


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        (draw(0.5), {}),  # its own generator
        (Samples(fail), {}),
        (Samples(lambda index: time.sleep(0.1)), {}),
        (Samples(str), {"sampler": ["a", "b"]}),
        (Samples(str), {"multiprocessing_context": "spawn"}),
    ],
)
def test_samples_that_cannot_be_compared_have_no_hashes(dataset: Samples, parts: dict[str, Any]) -> None:
    assert read(dataset, **parts).digests == {}


def test_a_short_epoch_of_an_iterable_dataset_is_counted_and_a_long_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Stream()).epoch_samples == 40
    monkeypatch.setattr("autotune.child.sample_reader.MAX_SECONDS", 0.05)
    assert read(Stream(pause=0.01)).epoch_samples is None


class Chunks(IterableDataset[torch.Tensor]):
    """Reads a piece of a file for each sample, of a thousand times as many."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 64_000

    def __iter__(self) -> Iterator[torch.Tensor]:
        with self.file.open("rb", buffering=0) as file:
            while piece := file.read(MIB):
                yield torch.tensor(len(piece))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize(("memory", "words"), [(80 * GIB, None), (16 * GIB, "and memory has 16.0 GiB")])
def test_an_epoch_that_the_page_cache_cannot_hold_is_reported(
    memory: int, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.child.sample_reader.read_memory_limit", lambda: memory)
    (tmp_path / "shard").write_bytes(bytes(64 * MIB))
    found = read(Chunks(tmp_path / "shard")).describe_cache()
    assert (found is None) == (words is None)
    if words is not None and found is not None:
        assert "An epoch reads about 62." in found
        assert words in found
        assert "100% of the bytes of 62 samples" in found


def test_samples_that_come_from_the_storage_are_as_slow_in_training() -> None:
    reader = SampleReader(load(Samples(str, 10**9)))
    reader.samples, reader.read_bytes, reader.storage_bytes = 20, 20 * MIB, 15 * MIB
    assert reader.describe_cache() is None
    reader.storage_bytes = 0
    assert reader.describe_cache() is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        (np.zeros(2), np.ones(2)),
        (np.array([[1, None]], dtype=object), np.array([[1, 2]], dtype=object)),
        ({"a": 1}, {"b": torch.tensor(1)}),
        ([1, [2]], [1, [3]]),
        ("a", b"a"),
        (None, 0),
        (Stream(1), Stream(2)),
        (lambda: 1, "lambda"),
    ],
)
def test_different_samples_have_different_hashes_and_equal_ones_the_same(one: Any, other: Any) -> None:
    assert hash_sample(one) == hash_sample(one)
    assert hash_sample(one) != hash_sample(other)


def test_equal_objects_have_the_same_hash_whether_they_are_one_object_or_two() -> None:
    word = "word" * 100
    assert hash_sample((word, word)) == hash_sample((word, "".join(["word"] * 100)))


class CountsEpochs(Stream):
    """Shuffles by the number of its epoch."""

    epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epoch += 1
        return super().__iter__()


class SetsTheSize(Sampler[list[int]]):
    """Chooses the size of the images of each epoch."""

    def __init__(self, dataset: Samples) -> None:
        self._dataset: Any = dataset
        dataset.size = 224  # type: ignore[attr-defined]  # set from outside, as users do

    def __iter__(self) -> Iterator[list[int]]:
        self._dataset.size += 32
        return iter([[0, 1], [2, 3]])


class Listed(CountsEpochs):
    """Has its samples in a list, in an attribute that usually is a dataset."""

    def __init__(self) -> None:
        super().__init__()
        self.dataset = list(range(4))


class Curriculum(Samples):
    def set_epoch(self, epoch: int) -> None: ...


@pytest.mark.parametrize(
    ("workload", "cause"),
    [
        (load(Samples(str)), None),
        (load(Stream()), None),
        (load(CountsEpochs()), "dataset.epoch"),
        (load(Listed()), "dataset.epoch"),
        (load(sized := Samples(str), batch_sampler=SetsTheSize(sized)), "dataset.size"),
        (load(Subset(Curriculum(str), [0, 1])), "dataset.dataset.set_epoch()"),
        (load(ConcatDataset([Samples(str), Curriculum(str)])), "dataset.datasets[1].set_epoch()"),
    ],
)
def test_a_dataset_that_differs_between_epochs_is_found(workload: LoadedWorkload, cause: str | None) -> None:
    assert find_epoch_state(workload, str) == cause


def test_each_start_of_an_epoch_is_progress_because_it_may_be_slow() -> None:
    phases = list[str]()
    find_epoch_state(load(Stream()), phases.append)
    assert phases == ["comparing two epochs"] * 2


class Decoded(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(20e-3)
        return self.flip(index)

    def flip(self, index: int) -> torch.Tensor:
        time.sleep(4e-3)
        return torch.tensor(index)


class CallsThroughALibrary(Decoded):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(max(index, index + 1, key=self.wait))

    def wait(self, index: int) -> Fraction:
        time.sleep(5e-3)
        return Fraction(index)


def find(dataset: Dataset[Any]) -> dict[str, float]:
    lines = find_costly_lines(load(dataset))
    return {line.source.removeprefix("def ").partition("(")[0]: line.share for line in lines}


def test_functions_are_ranked_by_their_share_with_libraries_and_without_other_user_functions() -> None:
    shares = find(Decoded())
    assert list(shares) == ["__getitem__", "flip"]
    assert shares["__getitem__"] > 2 * shares["flip"] > 0.05


def test_a_function_that_a_library_calls_does_not_count_for_its_caller() -> None:
    shares = find(CallsThroughALibrary())
    assert list(shares) == ["wait"]
    assert shares["wait"] > 0.8


def test_a_costly_function_may_be_in_a_folder_whose_name_is_not_utf_8() -> None:
    names: dict[str, Any] = {}
    exec(compile("def wait(index): return sum(range(100_000))", os.fsdecode(b"/caf\xe9/data.py"), "exec"), names)
    assert [one.file for one in find_costly_lines(load(Samples(names["wait"])))] == [r"/caf\udce9/data.py"]


@pytest.mark.parametrize("dataset", [Samples(fail), TensorDataset(torch.zeros(1_000_000, 8))])
def test_libraries_and_datasets_that_fail_have_no_costly_functions(dataset: Dataset[Any]) -> None:
    assert find(dataset) == {}


class Cached(Dataset[int]):
    """Waits when a sample is read for the first time."""

    def __init__(self, caches: bool) -> None:
        self._read, self._caches = set[int](), caches

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> int:
        if index not in self._read:
            time.sleep(5e-3)
        if self._caches:
            self._read.add(index)
        return index


@pytest.mark.parametrize("parts", [{}, {"multiprocessing_context": "spawn"}])
@pytest.mark.parametrize("caches", [True, False])
def test_samples_that_are_faster_when_they_are_read_again_are_reported(caches: bool, parts: dict[str, Any]) -> None:
    reader = read(Cached(caches), **parts)
    found = reader.describe_cache()
    assert (found is not None and "the dataset or the page cache keeps it" in found) == caches
    assert bool(reader.digests) is not bool(parts)  # workers that are spawned share nothing with this process
