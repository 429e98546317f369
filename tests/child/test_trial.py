"""What a trial counts, measured in this process."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, TensorDataset, get_worker_info

from autotune.child.distributed import RankSync
from autotune.child.sample_counts import SampleCountError
from autotune.child.trial import TrialRun, list_workers, warm_up_step
from autotune.child.workload import LoadedWorkload
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import TrialRequest
from autotune.protocol.throughput import measure_steady
from autotune.request import Workload
from tests.builders import make_config
from tests.misbehaving import make_waiting

pytestmark = pytest.mark.usefixtures("leaves_nothing")
CPU = torch.device("cpu")


def measure(
    workload: Workload | LoadedWorkload, workers: int, batch_size: int | None = 10, **request: Any
) -> Measurement:
    """Measure with a step that takes a while; a rough idea of the pace is enough to cut a long epoch short."""
    loaded = LoadedWorkload(parts=workload) if isinstance(workload, Workload) else workload
    usual: dict[str, Any] = {"epochs": 2, "seconds": 20.0, "precision": 0.5}
    order = TrialRequest(config=make_config(workers, batch_size=batch_size), **usual | request)
    return TrialRun(loaded, lambda batch: time.sleep(5e-3), CPU, order, lambda batches: None).run()


class DrawsAnEpoch(IterableDataset[torch.Tensor]):
    """Draws 40 samples in every worker, and says so of itself alone."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        draws = random.Random(0 if worker is None else worker.id)
        return (torch.tensor([draws.random()]) for _ in range(40))


class Count(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(1) for _ in range(35))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("samples", "drop_last", "last"), [(100_004, False, 4), (100_000, False, 0), (100_004, True, 0)]
)
def test_an_epoch_cut_short_ends_on_a_batch_as_short_as_a_whole_epoch_does(
    samples: int, drop_last: bool, last: int, workers: int
) -> None:
    found = measure(Workload(dataset=TensorDataset(torch.zeros(samples, 1)), drop_last=drop_last), workers)
    assert (found.epoch_batches, found.epoch_samples) == (10_000 + bool(last), 100_000 + last)
    assert all(trace.closed_after is not None for trace in found.epochs)
    assert [trace.samples % 10 for trace in found.epochs] == [last] * len(found.epochs)
    assert [-(-trace.samples // 10) for trace in found.epochs] == [trace.batches for trace in found.epochs]


class RecordsEpochs(SequentialSampler):
    """Records the epochs that it is set to."""

    def __init__(self, samples: int) -> None:
        super().__init__(range(samples))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class RecordsEpochsToo(TensorDataset):
    def __init__(self, samples: int) -> None:
        super().__init__(torch.zeros(samples, 1))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize("as_batches", [False, True])
def test_samplers_and_datasets_get_the_number_of_the_epoch_which_no_trial_repeats(as_batches: bool) -> None:
    data, sampler = RecordsEpochsToo(40), RecordsEpochs(40)
    given: Any = {"batch_sampler": BatchSampler(sampler, 10, drop_last=False)} if as_batches else {"sampler": sampler}
    loaded, alone = LoadedWorkload(parts=Workload(dataset=data, **given)), RankSync()
    order = TrialRequest(config=make_config(0, batch_size=None if as_batches else 10), epochs=2, seconds=20.0)
    for _ in range(2):
        TrialRun(loaded, lambda batch: None, CPU, order, lambda batches: None, alone).run()
    assert sampler.epochs == data.epochs == [0, 1, 2, 3]


class SlowStart(SequentialSampler):
    """Waits before its first index."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.2)
        yield from range(40)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_wait_for_data_includes_the_start_of_each_epoch(workers: int) -> None:
    data = TensorDataset(torch.zeros(40, 1))
    found = measure(Workload(dataset=data, sampler=SlowStart(data)), workers)
    assert [trace.wait_seconds >= 0.2 for trace in found.epochs] == [True, True]


class DatasetWithEpochs(TensorDataset):
    def __init__(self) -> None:
        super().__init__(torch.zeros(40, 1))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_the_epoch_of_every_part_is_set_once_as_trainers_do() -> None:
    data, sampler = DatasetWithEpochs(), RecordsEpochs(40)
    parts = Workload(dataset=data, batch_sampler=BatchSampler(sampler, 10, drop_last=False))
    measure(parts, 0, None)
    assert (data.epochs, sampler.epochs) == ([0, 1], [0, 1])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_warm_up_reports_between_batches_that_go_to_the_step_once(workers: int) -> None:
    batches: list[Any] = []
    phases: list[str] = []
    loaded = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(10, 1))))  # one batch in an epoch
    seconds = warm_up_step(loaded, batches.append, CPU, make_config(workers, batch_size=10), phases.append)
    assert len({id(batch) for batch in batches}) == len(phases) == (1 if workers else 3)
    assert seconds >= 0


def test_a_device_is_warmed_up_for_the_shorter_last_batch_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    sizes: list[int] = []
    loaded = LoadedWorkload(parts=Workload(dataset=TensorDataset(torch.zeros(99, 1))))
    config = make_config(0, batch_size=16)
    warm_up_step(loaded, lambda batch: sizes.append(len(batch[0])), torch.device("meta"), config, lambda phase: None)
    assert sizes == [16, 16, 16, 16, 3]


@pytest.mark.parametrize(
    ("workload", "batch_size"),
    [
        (Workload(dataset=Count()), 10),
        (Workload(dataset=TensorDataset(torch.zeros(35, 1)), batch_sampler=[list(range(20)), list(range(15))]), None),
    ],
)
def test_an_epoch_that_was_run_whole_tells_its_number_of_samples(workload: Workload, batch_size: int | None) -> None:
    assert measure(workload, 0, batch_size).epoch_samples == 35


def test_the_samples_of_an_epoch_that_nobody_knows_stay_unknown() -> None:
    batches = [[index] * (1 + index % 2) for index in range(20_000)]
    found = measure(Workload(dataset=TensorDataset(torch.zeros(20_000, 1)), batch_sampler=batches), 0, None)
    assert (found.epoch_batches, found.epoch_samples) == (20_000, None)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_workers_that_draw_an_epoch_each_are_measured_as_they_are() -> None:
    loaded = LoadedWorkload(parts=Workload(dataset=DrawsAnEpoch()))
    loaded.sample_counts.samples, loaded.sample_counts.reads_worker_info = 40, True
    found = measure(loaded, 2)
    assert (found.epoch_batches, found.epoch_samples) == (8, 80)


class SaysTooFew(Count):
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(1) for _ in range(10_000))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_an_epoch_that_has_more_batches_than_were_promised_is_of_unknown_length_until_it_ends() -> None:
    found = measure(Workload(dataset=SaysTooFew()), 0, seconds=0.5)
    assert found.epochs[0].batches > 2
    assert (found.epoch_batches, found.epoch_samples) == (None, None)


class CountsCollections(Dataset[int]):
    """Returns the number of collections of the middle generation since the last full one."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return gc.get_count()[2]


def test_a_trial_begins_with_no_full_garbage_collection_due() -> None:
    seen: list[torch.Tensor] = []
    gc.collect()
    for _ in range(8):  # then a full collection is near
        gc.collect(1)
    order = TrialRequest(config=make_config(0, batch_size=4), epochs=1, seconds=20.0)
    loaded = LoadedWorkload(parts=Workload(dataset=CountsCollections()))
    TrialRun(loaded, seen.append, CPU, order, lambda batches: None).run()
    assert seen[0][0] == 0


@pytest.mark.parametrize("workers", [4, [1, 2], "four", None])
def test_what_another_library_calls_workers_is_no_process_of_torch(workers: object) -> None:
    iterator: Any = SimpleNamespace(_workers=workers)
    assert list_workers(iterator) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_first_round_of_many_seconds_is_the_only_one(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.child.trial.MAX_FIRST_ROUND_SECONDS", 0.1)
    slow, in_a_round = Workload(dataset=make_waiting(0.1)), max(1, workers)
    assert measure(slow, workers, batch_size=4, epochs=1, seconds=0.1).epochs[0].batches == in_a_round
    monkeypatch.undo()
    assert measure(slow, workers, batch_size=4, epochs=1, seconds=0.1).epochs[0].batches == 2 * in_a_round


class PreparesIndices(SequentialSampler):
    """Takes longer than a trial before its first index, as a shuffle of many samples does."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.5)
        return super().__iter__()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_start_of_a_long_epoch_is_no_pace_of_its_batches(workers: int) -> None:
    dataset = TensorDataset(torch.zeros(10**6))
    prepared = Workload(dataset=dataset, sampler=PreparesIndices(dataset))
    found = measure(prepared, workers, epochs=1, seconds=0.3)
    assert measure_steady(found.epochs, make_config(workers)).batch_seconds < 0.25


class WithLength(Count):
    """A stream that every worker repeats; its length is known, though no epoch was counted."""

    def __len__(self) -> int:
        return 35


def test_workers_that_repeat_a_stream_are_found_by_its_length() -> None:
    with pytest.raises(
        SampleCountError, match="delivered 70 samples of a dataset whose length is 35: it is wrong, or each"
    ):
        measure(Workload(dataset=WithLength()), 2)
    assert measure(Workload(dataset=WithLength()), 1).epochs


class SlowFirst(Count):
    """A stream each of whose epochs takes 20 s to start, and the first one a minute."""

    def __init__(self) -> None:
        self.now, self._is_first = 0.0, True

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.now += 60.0 if self._is_first else 20.0
        self._is_first = False
        return super().__iter__()


def test_the_start_of_an_epoch_is_no_part_of_the_first_use_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SlowFirst()
    monkeypatch.setattr("autotune.child.trial.time.perf_counter", lambda: stream.now)
    loaded = LoadedWorkload(parts=Workload(dataset=stream))
    assert warm_up_step(loaded, lambda batch: None, CPU, make_config(0, batch_size=5), lambda phase: None) == 40.0
