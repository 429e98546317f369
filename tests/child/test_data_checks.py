"""What two real workers of a process that never reads are seen to do."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from autotune.child.data_checks import WatchedInit, check_workers
from autotune.child.sample_reader import SampleReader
from autotune.child.workload import LoadedWorkload
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.workload import Workload
from tests.builders import make_workload

pytestmark = pytest.mark.usefixtures("leaves_nothing")
SAMPLES = 32
BYTES = 4


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read everything, on a busy machine as well."""
    for module in ("data_checks", "sample_reader"):
        monkeypatch.setattr(f"autotune.child.{module}.MAX_SECONDS", 30.0)


def check(dataset: Dataset[Any], *, reader: Dataset[Any] | None = None, **parts: Any) -> WorkloadProfile:
    """Read in this process, and then check workers; `reader` is the dataset as the first process has it."""
    first = SampleReader(LoadedWorkload(parts=Workload(dataset=reader or dataset, **parts)))
    first.read()
    workload = LoadedWorkload(parts=Workload(dataset=dataset, **parts))
    workload.sample_counts.samples = first.epoch_samples
    return check_workers(workload, make_workload(kind=workload.kind, notes=()), first.digests)


class Samples(Dataset[Any]):
    """Delivers what a function makes of an index."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


@pytest.mark.parametrize("make", [torch.tensor, lambda index: (torch.rand(3), random.random()), str])
def test_workers_that_return_the_same_samples_cause_no_note(make: Any) -> None:
    found = check(Samples(make))
    assert (found.differing_samples, found.notes) == (0, ())


def test_samples_that_depend_on_the_process_that_reads_are_reported() -> None:
    found = check(Samples(lambda index: index + (get_worker_info() is not None and index % 2)))
    assert found.differing_samples == SAMPLES / 2
    assert "16 of the compared samples differ (index 1, 3, 5, ...)" in found.notes[0]


def test_a_file_that_forked_workers_share_is_found(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(index.to_bytes(BYTES, "big") for index in range(SAMPLES)))
    descriptor = os.open(path, os.O_RDONLY)

    def read(index: int) -> bytes:
        os.lseek(descriptor, index * BYTES, os.SEEK_SET)
        time.sleep(1e-3)
        return os.read(descriptor, BYTES)

    assert check(Samples(read)).differing_samples
    os.close(descriptor)


@pytest.mark.parametrize("often", [0.02, 0.5])
def test_draws_from_a_generator_of_the_dataset_are_not_taken_for_different_data(often: float) -> None:
    for seed in range(3):
        own = random.Random(seed)
        assert check(Samples(lambda index, own=own: own.random() < often)).differing_samples == 0


def test_workers_that_raise_are_left_to_the_trials_and_end_at_once() -> None:
    gc.collect()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        found = check(Samples([].__getitem__), reader=Samples(str))
        assert (found.notes, found.worker_threads_cpu) == ((), 0.0)
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
        gc.collect()


def burn() -> None:
    sum(range(500_000))


class Computing(Samples):
    """Computes in the worker, in the thread that loads or in another one as well."""

    helpers: ClassVar[list[ThreadPoolExecutor]] = []

    def __init__(self, *, threaded: bool) -> None:
        super().__init__(str)
        self._threaded = threaded

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            if self._threaded and not self.helpers:
                self.helpers.append(ThreadPoolExecutor(1))
            for helper in self.helpers:
                helper.submit(burn).result()
            burn()
        return super().__getitem__(index)


@pytest.mark.parametrize("threaded", [True, False])
def test_cpu_time_of_threads_that_libraries_start_is_distinguished_from_that_of_torch(threaded: bool) -> None:
    assert (check(Computing(threaded=threaded)).worker_threads_cpu >= 0.25) is threaded


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, *, sharded: bool, random: bool = False) -> None:
        self._sharded = sharded
        self._random = random

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None and self._sharded else (0, 1)
        for number in range(first, 40, step):
            yield torch.tensor([number]) + self._random * torch.rand(1)


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_an_iterable_dataset_is_found_to_shard_its_data_or_not(sharded: bool, random: bool) -> None:
    found = check(Stream(sharded=sharded, random=random))
    assert found.workers_duplicate_data is not sharded
    assert found.reads_worker_info is sharded
    assert (found.shards, found.notes) == (None, ())


def test_equal_batches_of_two_workers_show_duplicates_in_an_epoch_too_long_to_be_counted() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=Stream(sharded=False)))
    assert check_workers(workload, make_workload(kind="iterable"), {}).workers_duplicate_data


class DrawsAnEpoch(IterableDataset[torch.Tensor]):
    """Draws as many samples as an epoch is to have, in every worker, as WebDataset's resampled shards do."""

    def __init__(self, asked: str, *, same: bool = False) -> None:
        self._asked = asked
        self._same = same

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        known = getattr(worker, self._asked) if worker is not None else None
        draws = random.Random(0 if worker is None or self._same else f"{worker.seed} {known}")
        return (torch.tensor([draws.random()]) for _ in range(40))


@pytest.mark.parametrize("asked", ["id", "num_workers"])
def test_a_dataset_that_reads_its_worker_info_and_draws_an_epoch_in_each_worker_is_tuned_with_a_note(
    asked: str,
) -> None:
    found = check(DrawsAnEpoch(asked))
    assert not found.workers_duplicate_data
    assert "Each worker delivers an epoch of its own (40 samples)" in found.notes[0]


@pytest.mark.parametrize("dataset", [DrawsAnEpoch("seed"), DrawsAnEpoch("num_workers", same=True)])
def test_seeds_alone_and_equal_data_are_duplicates(dataset: DrawsAnEpoch) -> None:
    found = check(dataset)
    assert (found.workers_duplicate_data, found.notes) == (True, ())


def read_worker_info(worker: int) -> None:
    """Do as PyTorch's documentation has it if shards are set up outside the dataset."""
    info = get_worker_info()
    assert info is not None
    assert worker < info.num_workers
    assert isinstance(info.dataset, Stream)


def test_shards_may_be_set_up_by_a_worker_init_fn() -> None:
    found = check(Stream(sharded=False, random=True), worker_init_fn=read_worker_info)
    assert (found.reads_worker_info, found.workers_duplicate_data) == (True, False)


def test_the_init_function_of_watched_workers_can_be_pickled_for_spawn() -> None:
    watch = WatchedInit(None, read_worker_info)
    assert pickle.loads(pickle.dumps(watch)) == watch


class FirstTakesAll(IterableDataset[torch.Tensor]):
    """Has one shard, which the first worker gets."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        return iter(torch.arange(200)) if worker is None or worker.id == 0 else iter(())


def test_a_worker_that_delivers_nothing_while_another_delivers_all_is_reported() -> None:
    found = check(FirstTakesAll())
    assert (found.workers_duplicate_data, found.shards) == (False, 1)
    assert "One of two workers delivers everything" in found.notes[0]
