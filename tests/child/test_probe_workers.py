from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from autotune.child.probe import count_shards, profile_workload
from autotune.child.probe_batches import load_batches
from autotune.child.probe_storage import describe_storage
from autotune.child.probe_workers import (
    WorkerUsage,
    count_round_workers,
    describe_start,
    fetch_samples,
    fit_worker_startup,
    measure_manager_start,
    measure_worker,
    per_worker_warmup_seconds,
    single_thread,
    time_worker_round,
    time_worker_transfer,
)
from autotune.child.sharding import (
    ShareWatch,
    count_samples_single_process,
    describe_idle_workers,
    workers_duplicate_data,
)
from autotune.child.workload import LoadedWorkload
from autotune.config import ProcessSettings
from autotune.errors import WorkloadError
from autotune.protocol.messages import ProbeCommand
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.request import Workload
from tests.builders import GIB, MIB

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every epoch to its end, on a busy machine as well."""
    monkeypatch.setattr("autotune.child.sharding.MAX_COUNT_SECONDS", 30.0)


def load(dataset: Dataset[object], **parts: object) -> LoadedWorkload:
    return LoadedWorkload(parts=Workload(dataset=dataset, **parts))  # type: ignore[arg-type]  # as a test names them


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, *, sharded: bool, random: bool = False) -> None:
        self._sharded = sharded
        self._random = random

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None and self._sharded else (0, 1)
        for number in range(first, 40, step):
            yield torch.tensor([number]) + self._random * torch.rand(1)


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


def read_which_worker(worker: int) -> None:
    """Do as PyTorch's documentation has it where the workers' shares are set up from outside the dataset."""
    info = get_worker_info()
    assert info is not None
    assert worker < info.num_workers


class FailsInWorkers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info() is None, "only the training process may read this"
        return torch.zeros(1)


class Batches(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("it has __getitems__")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


class FirstTakesAll(IterableDataset[torch.Tensor]):
    """Has one shard, which the first worker gets."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        return iter(torch.arange(200)) if worker is None or worker.id == 0 else iter(())


def test_a_worker_that_delivers_nothing_while_another_delivers_all_is_told_and_no_more_are_tried() -> None:
    workload = load(FirstTakesAll())
    count_samples_single_process(workload)
    assert not workers_duplicate_data(workload)
    assert "One of two workers delivers everything" in (describe_idle_workers(workload) or "")
    assert count_shards(workload) == 1


def test_workers_that_share_the_data_out_are_all_busy() -> None:
    workload = load(Stream(sharded=True))
    count_samples_single_process(workload)
    assert not workers_duplicate_data(workload)
    assert (describe_idle_workers(workload), count_shards(workload)) == (None, None)


class Chunks(IterableDataset[torch.Tensor]):
    """Reads a piece of a file for each sample."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __iter__(self) -> Iterator[torch.Tensor]:
        with self.file.open("rb", buffering=0) as file:
            while piece := file.read(MIB):
                yield torch.tensor(len(piece))


def test_what_a_sample_of_a_stream_takes_is_kept_with_the_bytes_that_were_read_for_it(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(64 * MIB))
    workload = load(Chunks(tmp_path / "shard"))
    count_samples_single_process(workload)
    reads = workload.sample_counts.reads
    assert workload.sample_counts.samples == 64
    assert all(MIB <= read.read_bytes < 2 * MIB for read in reads)
    assert "An epoch reads about 977 GiB" in (describe_storage(reads * 10, 1_000_000, 64 * GIB) or "")


class SlowShards(IterableDataset[torch.Tensor]):
    """Waits for each shard, of two hundred samples that take nothing."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(50):
            time.sleep(0.02)
            yield from torch.arange(200)


def test_a_stream_is_read_for_long_enough_to_meet_its_next_shards() -> None:
    _, times, _ = load_batches(load(SlowShards()), 10, lambda phase: None)
    assert sum(one.wall >= 0.02 for one in times[1:]) > 3


def test_a_round_is_timed_and_one_that_fails_in_the_workers_is_unknown() -> None:
    seconds = time_worker_round(load(TensorDataset(torch.zeros(8, 1))), 2)
    assert seconds is not None
    assert seconds > 0
    assert time_worker_round(load(FailsInWorkers()), 2) is None


def test_starting_is_what_a_round_takes_beyond_loading_and_grows_with_the_workers() -> None:
    cost = fit_worker_startup(0.15, 0.45, workers=4, load_seconds=0.02)
    assert cost is not None
    assert cost.per_batch(1) == pytest.approx(0.13)
    assert cost.per_batch(4) == pytest.approx(0.43)
    assert fit_worker_startup(None, 0.45, 4, 0.02) is None


def test_a_warm_round_that_happens_to_be_slower_costs_a_fresh_process_nothing() -> None:
    assert per_worker_warmup_seconds(0.2, 0.3, 4, usable_cpus=2) == 0
    assert per_worker_warmup_seconds(None, 0.3, 4, usable_cpus=2) == 0
    assert per_worker_warmup_seconds(0.5, 0.3, 1, usable_cpus=2) == pytest.approx(0.2)


def test_samples_are_fetched_as_a_loader_would_fetch_them() -> None:
    assert fetch_samples(load(Batches()), 3) == [0, 10, 20]
    assert len(fetch_samples(load(TensorDataset(torch.zeros(5, 1))), 9)) == 5
    assert [int(sample) for sample in fetch_samples(load(Stream(sharded=True)), 2)] == [0, 1]


def test_the_order_of_the_workloads_own_sampler_is_kept() -> None:
    assert fetch_samples(load(Batches(), sampler=[7, 3]), 2) == [70, 30]


def test_handing_over_a_large_batch_costs_more_than_a_small_one() -> None:
    samples = [torch.zeros(256, 1024)]
    workload = load(TensorDataset(samples[0]))
    small, large = (sum(time_worker_transfer(workload, samples, size)) for size in (1, 64))
    assert large > 2 * small > 0


def test_an_iterable_dataset_that_does_not_shard_itself_is_found_out() -> None:
    assert workers_duplicate_data(load(Stream(sharded=False)))
    assert not workers_duplicate_data(load(Stream(sharded=True)))


@pytest.mark.parametrize("sharded", [True, False])
def test_an_unsharded_dataset_that_is_random_is_found_out_by_its_number_of_samples(sharded: bool) -> None:
    workload = load(Stream(sharded=sharded, random=True))
    count_samples_single_process(workload)
    assert workload.sample_counts.samples == 40
    assert workers_duplicate_data(workload) is not sharded


@pytest.mark.parametrize("asked", ["id", "num_workers"])
def test_a_dataset_that_asks_which_worker_it_is_in_and_draws_an_epoch_in_each_is_not_taken_for_duplicated(
    asked: str,
) -> None:
    workload = load(DrawsAnEpoch(asked))
    count_samples_single_process(workload)
    assert not workers_duplicate_data(workload)
    assert workload.sample_counts.is_per_worker


def test_a_dataset_that_only_seeds_itself_in_each_worker_delivers_its_data_once_more() -> None:
    workload = load(DrawsAnEpoch("seed"))
    count_samples_single_process(workload)
    assert workers_duplicate_data(workload)
    assert not workload.sample_counts.is_per_worker


def test_asking_which_worker_it_is_does_not_excuse_delivering_the_same() -> None:
    workload = load(DrawsAnEpoch("num_workers", same=True))
    count_samples_single_process(workload)
    assert workers_duplicate_data(workload)


def test_shares_that_are_set_up_from_outside_the_dataset_are_asked_for_as_well() -> None:
    workload = load(Stream(sharded=False, random=True), worker_init_fn=read_which_worker)
    count_samples_single_process(workload)
    assert workload.sample_counts.asks_which_worker
    assert not workers_duplicate_data(workload)


def test_a_dataset_with_an_epoch_for_each_worker_is_tuned_with_a_note_that_says_so() -> None:
    workload = load(DrawsAnEpoch("id"))
    order = ProbeCommand(batch_size=8, largest=8, usable_cpus=1.0)
    profile = profile_workload(workload, lambda batch: None, torch.device("cpu"), order, lambda phase: None)
    assert isinstance(profile, WorkloadProfile)
    assert not profile.workers_duplicate_data
    (note,) = profile.notes
    assert "Each worker delivers an epoch of its own (40 samples)" in note
    assert "get_worker_info()" in note


def test_what_watches_a_worker_travels_to_one_that_is_spawned(tmp_path: Path) -> None:
    watch = ShareWatch(str(tmp_path / "asked"), read_which_worker)
    assert pickle.loads(pickle.dumps(watch)) == watch


def test_an_epoch_too_long_to_be_counted_leaves_the_count_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.sharding.MAX_COUNT_SECONDS", 0.0)
    workload = load(Stream(sharded=True))
    count_samples_single_process(workload)
    assert workload.sample_counts.samples is None
    assert not workload.sample_counts.is_exceeded(10**9)


def test_a_dataset_that_answers_a_query_with_too_few_samples_is_refused() -> None:
    class Short(Batches):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices[1:]

    with pytest.raises(WorkloadError, match="returned 2 samples for 3 indices"):
        fetch_samples(load(Short()), 3)


def test_a_single_thread_is_given_back_even_after_an_error() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), single_thread():
        divmod(1, torch.get_num_threads() - 1)
    assert torch.get_num_threads() == threads


def test_starting_the_shared_memory_manager_costs_something_or_nothing_but_never_less() -> None:
    assert measure_manager_start(usable_cpus=1) >= 0


def test_handing_over_is_timed_with_the_strategy_that_most_trials_share_memory_by(tmp_path: Path) -> None:
    def collate(samples: list[object]) -> torch.Tensor:
        if get_worker_info() is not None:
            (tmp_path / get_sharing_strategy()).touch()
        return torch.zeros(len(samples))

    measure_manager_start(1)
    time_worker_transfer(load(TensorDataset(torch.zeros(8, 1)), collate_fn=collate), [torch.zeros(1)], size=2)
    assert [path.name for path in tmp_path.iterdir()] == [ProcessSettings().sharing_strategy]


def test_what_a_worker_pays_on_few_cpus_is_not_multiplied_by_those_it_may_not_use() -> None:
    workers = count_round_workers(usable_cpus=2.5)
    assert workers == 6
    wall = 0.1 * workers / 2.5  # each worker pays 0.1 s of CPU time
    assert per_worker_warmup_seconds(0.3 + wall, 0.3, workers, usable_cpus=2.5) == pytest.approx(0.1)


def test_a_probe_takes_rounds_of_as_many_workers_as_its_share_of_the_cpus_calls_for(tmp_path: Path) -> None:
    workload = load(TensorDataset(torch.zeros(64, 1)), worker_init_fn=lambda worker: (tmp_path / str(worker)).touch())
    order = ProbeCommand(batch_size=8, largest=8, usable_cpus=1.0)
    profile_workload(workload, lambda batch: None, torch.device("cpu"), order, lambda phase: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


class Numbers(Dataset[torch.Tensor]):
    """Plain numbers; in a worker, the first of them does something to its process."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            self.meet_worker()
        return torch.tensor(index)

    def meet_worker(self) -> None:
        """Do nothing."""


class Threading(Numbers):
    """Starts threads that compute, as libraries do that decode on several."""

    helpers: ClassVar[list[ThreadPoolExecutor]] = []

    def meet_worker(self) -> None:
        if not self.helpers:
            self.helpers.append(ThreadPoolExecutor(1))
        self.helpers[0].submit(burn).result()
        burn()


class Computing(Numbers):
    """Computes in the thread that loads."""

    def meet_worker(self) -> None:
        burn()


def burn() -> None:
    sum(range(500_000))


def test_the_threads_that_send_batches_compute_little() -> None:
    found = measure_worker(load(Computing()))
    assert found.threads_cpu < 0.25
    assert found.memory_bytes > 0


def test_threads_of_libraries_compute_for_a_good_part() -> None:
    assert measure_worker(load(Threading())).threads_cpu >= 0.25


def test_a_worker_that_fails_is_left_to_the_trials() -> None:
    assert measure_worker(load(TensorDataset())) == WorkerUsage()


@pytest.mark.parametrize(
    ("method", "seconds", "words"),
    [
        ("fork", 1.0, None),
        ("spawn", 0.1, None),
        ("spawn", 1.5, "Workers start by spawn: 8 of them take 12.5 s, 1.5 s more for each."),
    ],
)
def test_the_time_that_workers_take_to_start_is_reported_if_it_is_long(
    method: str, seconds: float, words: str | None
) -> None:
    workload = load(TensorDataset(), multiprocessing_context=method)
    assert describe_start(workload, LinearCost(fixed_seconds=0.5, per_item_seconds=seconds)) == words
