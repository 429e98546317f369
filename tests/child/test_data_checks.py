from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import pickle
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, SequentialSampler, get_worker_info

from autotune.child.data_checks import (
    DUPLICATES,
    check_workers,
    count_copied_bytes,
    describe_growth,
    describe_kept,
    watch_worker,
)
from autotune.child.sample_reader import SampleReader
from autotune.child.workload import LoadedWorkload
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import Workload
from autotune.system.procfs import read_smaps
from tests.builders import MIB, make_workload

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
    """Delivers a function of the index."""

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


@pytest.mark.parametrize("sampler", [None, SequentialSampler(range(SAMPLES)), RandomSampler(range(SAMPLES))])
def test_samples_that_depend_on_the_process_that_reads_are_reported(sampler: Any) -> None:
    """A sampler of these types is that of a factory that returns a DataLoader."""
    found = check(Samples(lambda index: index + (get_worker_info() is not None and index % 2)), sampler=sampler)
    assert found.differing_samples == SAMPLES / 2
    assert "16 of the compared samples differ (index 1, 3, 5, ...)" in found.notes[0]


def test_samples_that_are_new_in_each_process_are_not_taken_for_an_effect_of_workers() -> None:
    first, second = (torch.rand(SAMPLES, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    found = check(Samples(second.__getitem__), reader=Samples(first.__getitem__))
    assert found.differing_samples == 0
    assert found.notes[0].startswith("The factory makes other samples each time that it is called (32 of")


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
    own = random.Random(0)
    assert check(Samples(lambda index: own.random() < often)).differing_samples == 0


def test_workers_that_raise_are_left_to_the_trials_and_end_at_once() -> None:
    gc.collect()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        assert check(Samples([].__getitem__), reader=Samples(str)).notes == ()
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
        gc.collect()


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, *, sharded: bool, random: bool = False) -> None:
        self._sharded, self._random = sharded, random

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
    assert (found.shards, found.notes) == (None, () if sharded else (DUPLICATES,))


def test_equal_batches_of_two_workers_show_duplicates_in_an_epoch_too_long_to_be_counted() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=Stream(sharded=False)))
    assert check_workers(workload, make_workload(kind="iterable"), {}).workers_duplicate_data


class EqualStarts(IterableDataset[torch.Tensor]):
    """Two files that begin with the same samples; each worker reads one."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        for file in range(2) if worker is None else range(worker.id, 2, worker.num_workers):
            for number in range(40):
                yield torch.tensor([number if number < 10 else 1000 * file + number])


@pytest.mark.parametrize("is_counted", [True, False])
def test_files_that_begin_with_equal_samples_are_not_duplicates(is_counted: bool) -> None:
    workload = LoadedWorkload(parts=Workload(dataset=EqualStarts()), inherited_bytes=2**40)
    workload.sample_counts.samples = 80 if is_counted else None
    found = check_workers(workload, make_workload(kind="iterable"), {})
    assert (found.workers_duplicate_data, found.reads_worker_info) == (False, True)


class EqualFiles(IterableDataset[torch.Tensor]):
    """Two equal files; each worker reads one."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        files = 2 if worker is None else len(range(worker.id, 2, worker.num_workers))
        return (torch.tensor([number]) for _ in range(files) for number in range(40))


def test_equal_files_of_an_epoch_that_has_as_many_samples_with_workers_are_not_duplicates() -> None:
    found = check(EqualFiles())
    assert (found.workers_duplicate_data, found.shards) == (False, None)


def make_sparse(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).to_sparse()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_batches_that_torch_cannot_compare_show_no_duplicates() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=Stream(sharded=False), collate_fn=make_sparse))
    assert not check_workers(workload, make_workload(kind="iterable"), {}).workers_duplicate_data


class DrawsAnEpoch(IterableDataset[torch.Tensor]):
    """Draws the samples of an epoch in every worker, as WebDataset's resampled shards do."""

    def __init__(self, asked: str, *, same: bool = False) -> None:
        self._asked, self._same = asked, same

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        known = getattr(worker, self._asked) if worker is not None else None
        draws = random.Random(0 if worker is None or self._same else f"{worker.seed} {known}")
        return (torch.tensor([draws.random()]) for _ in range(40))


@pytest.mark.parametrize("asked", ["id", "num_workers"])
def test_a_dataset_that_reads_its_worker_info_may_draw_an_epoch_in_each_worker(asked: str) -> None:
    found = check(DrawsAnEpoch(asked))
    assert not found.workers_duplicate_data
    assert "Each worker delivers an epoch of its own (40 samples)" in found.notes[0]


@pytest.mark.parametrize("dataset", [DrawsAnEpoch("seed"), DrawsAnEpoch("num_workers", same=True)])
def test_seeds_alone_and_equal_data_are_duplicates(dataset: DrawsAnEpoch) -> None:
    found = check(dataset)
    assert (found.workers_duplicate_data, found.notes) == (True, (DUPLICATES,))


def test_random_samples_of_a_long_epoch_that_is_not_sharded_are_reported() -> None:
    workload = LoadedWorkload(parts=Workload(dataset=Stream(sharded=False, random=True)))  # its length is not known
    found = check_workers(workload, make_workload(kind="iterable", notes=()), {})
    assert not found.workers_duplicate_data
    assert found.notes[0].startswith("__iter__ does not read get_worker_info()")


def read_worker_info(worker: int) -> None:
    """Set up shards outside the dataset, as in PyTorch's documentation."""
    info = get_worker_info()
    assert info is not None
    assert worker < info.num_workers
    assert isinstance(info.dataset, Stream)


def test_shards_may_be_set_up_by_a_worker_init_fn() -> None:
    found = check(Stream(sharded=False, random=True), worker_init_fn=read_worker_info)
    assert (found.reads_worker_info, found.workers_duplicate_data) == (True, False)


def test_the_init_function_of_watched_workers_can_be_pickled_for_spawn() -> None:
    watch = partial(watch_worker, None, read_worker_info)
    again = pickle.loads(pickle.dumps(watch))
    assert (again.func, again.args) == (watch.func, watch.args)


class FirstTakesAll(IterableDataset[torch.Tensor]):
    """Has one shard, which the first worker gets."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        return iter(torch.arange(200)) if worker is None or worker.id == 0 else iter(())


def test_a_worker_that_delivers_nothing_while_another_delivers_all_is_reported() -> None:
    found = check(FirstTakesAll())
    assert (found.workers_duplicate_data, found.shards) == (False, 1)
    assert "One of two workers delivers everything" in found.notes[0]


def test_a_page_that_a_forked_process_writes_to_is_copied_and_one_that_it_allocates_is_not() -> None:
    inherited, page = bytearray(b"x" * 64 * MIB), os.sysconf("SC_PAGE_SIZE")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = count_copied_bytes([read_smaps("self")])
        inherited[::page] = b"y" * len(inherited[::page])
        allocated = bytearray(b"z" * 128 * MIB)
        os.write(writer, str(count_copied_bytes([read_smaps("self")]) - before).encode())
        os._exit(len(allocated) == 0)
    os.waitpid(child, 0)
    assert 60 * MIB < int(os.read(reader, 100)) < 70 * MIB
    os.close(reader)
    os.close(writer)


class Images(Dataset[torch.Tensor]):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(len(self.names[index]))  # type: ignore[attr-defined]  # an attribute


def describe(dataset: Dataset[Any], per_sample: int = 4096) -> str:
    workload = LoadedWorkload(parts=Workload(dataset=dataset))
    return describe_growth(workload, [(1000, 10 * MIB), (2000, 10 * MIB + 1000 * per_sample)]) or ""


def set_heap(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("autotune.child.data_checks.read_smaps", lambda pid: {"Anonymous": size})


INFOS = [{"path": f"{number:050}"} for number in range(150_000)]
HOLDS_ITSELF = Images(infos=INFOS)
HOLDS_ITSELF.dataset = HOLDS_ITSELF  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dataset", "cure"),
    [
        (Images(root="x", classes=["a"] * 100, infos=INFOS), "keep it in autotune.shared(dataset.infos)"),
        (Images(datasets=[Images(), Images(infos=INFOS)]), "keep it in autotune.shared(dataset.datasets[1].infos)"),
        (Images(names=dict(enumerate(INFOS))), "Most is in `dataset.names`, a dict of 150,000 objects of type dict"),
        (HOLDS_ITSELF, "infos"),
    ],
)
def test_the_note_says_how_much_is_copied_and_names_the_collection(
    dataset: Images, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_heap(monkeypatch, 140 * MIB)
    words = describe(dataset)
    assert "copy up to 140 MiB" in words
    assert "3.9 MiB in 1,000 samples; 8 workers: 1.1 GiB" in words
    assert cure in words
    assert describe(dataset, per_sample=16) == ""


@pytest.mark.parametrize(("heap_mib", "is_noted"), [(140, False), (600, True)])
def test_copies_that_no_collection_explains_are_noted_only_if_they_are_large(
    heap_mib: int, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_heap(monkeypatch, heap_mib * MIB)
    words = describe(Images(pixels=np.zeros(10**6), classes=["a"]), per_sample=8192)
    assert ("Keep names and labels in numpy arrays or tensors" in words) is is_noted


class Keeping(Dataset[torch.Tensor]):
    def __init__(self, *, keeps: bool) -> None:
        self._kept, self._keeps = list[Any](), keeps

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        loaded = mmap.mmap(-1, 160_000, flags=mmap.MAP_PRIVATE)  # no free memory of the heap, as an array may be
        loaded.write(bytes(range(1, 251)) * 640)
        if self._keeps:
            self._kept.append(loaded)
        return torch.tensor(index)


@pytest.mark.parametrize("keeps", [False, True])
def test_workers_that_keep_what_they_load_are_noted(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.data_checks.MAX_SECONDS", 3.0)
    monkeypatch.setattr("autotune.child.data_checks.MIN_GROWTH_BYTES", 2**20)
    workload = LoadedWorkload(parts=Workload(dataset=Keeping(keeps=keeps)))
    found = check_workers(workload, make_workload(notes=()), dict.fromkeys(range(64), ""))
    assert any("If the dataset keeps samples in a cache, limit its size" in note for note in found.notes) is keeps


@pytest.mark.parametrize(
    ("samples", "mib", "is_noted"),
    [
        (10**6, [0, 10, 20, 30, 40], True),
        (10**6, [5, 5, 0, 10, 20, 30, 40], True),  # memory that was inherited is used first
        (10**6, [0, 10, 20, 30, 40, 40], False),  # a cache that is full
        (10**6, [0, 10, 20, 15, 40], False),  # it comes and goes
        (10**6, [0, 40, 40, 40, 40], False),  # once, such as the buffers of a decoder
        (10**6, [0, 10, 20, 30], False),
        (10**6, [0, 1, 2, 3, 4], False),
        (2000, [0, 10, 20, 30, 40], False),  # 80 MiB in an epoch
        (None, [0, 10, 20, 30, 40], False),
    ],
)
def test_memory_that_grows_with_every_reading_is_noted_if_an_epoch_adds_much(
    samples: int | None, mib: list[int], is_noted: bool
) -> None:
    note = describe_kept(samples, [(250 * number, one * MIB) for number, one in enumerate(mib)])
    assert (note is not None) is is_noted
    assert note is None or "grew by 40.0 MiB in 1,000 samples. If it goes on, an epoch adds 39.1 GiB" in note


def test_workers_that_read_a_list_copy_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MIN_NOTED_BYTES": 0, "MAX_SECONDS": 3.0}.items():
        monkeypatch.setattr(f"autotune.child.data_checks.{name}", value)
    workload = LoadedWorkload(parts=Workload(dataset=Images(names=[f"{number:0500}" for number in range(1_000_000)])))
    found = check_workers(workload, make_workload(notes=()), dict.fromkeys(range(64), ""))
    assert any("autotune.shared(dataset.names)" in note for note in found.notes)
