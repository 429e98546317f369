"""`watch` measures waits by a clock, and prints one sentence when they last."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.errors import UsageError
from autotune.online.attach import autopilot
from autotune.online.autopilot import Stats, StatsCallback
from autotune.online.watch import WaitMeter, WatchedLoader, watch
from autotune.profiles.load import TunedLoader
from autotune.profiles.store import save_profile
from autotune.system.machine import read_machine
from tests.builders import make_profile


class Loop:
    """A loop on a clock of its own: each batch is waited for, then the step takes its time."""

    def __init__(self, wait: float, step: float, batches: int) -> None:
        self.wait, self.step, self.batches, self.now, self.stats = wait, step, batches, 0.0, list[Stats]()

    def __iter__(self) -> Iterator[int]:
        for number in range(self.batches):
            self.now += self.wait
            yield number

    def run(self, profile: Path | TunedLoader | None = None) -> list[int]:
        found = []
        meter = WaitMeter(self.stats.append, profile, clock=lambda: self.now)
        for number in WatchedLoader(self, meter):
            self.now += self.step
            found.append(number)
        return found


def test_batches_and_attributes_are_those_of_the_loader() -> None:
    watched = watch([5, 6, 7])
    assert (list(watched), len(watched), watched.count(6)) == ([5, 6, 7], 3, 1)


def test_an_attribute_is_set_on_the_loader() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(6)), 2)
    watched: Any = watch(loader)
    watched.collate_fn = len
    assert (loader.collate_fn, list(watched)) == (len, [2, 2, 2])


def test_on_stats_that_fails_is_named_and_not_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(stats: Stats) -> None:
        seen.append(stats)
        raise ConnectionError("no route to the server")

    seen = list[Stats]()
    callback = StatsCallback(fail)
    callback({})
    callback({})
    assert seen == [{}]
    assert capsys.readouterr().err == (
        "dltune: on_stats failed, and is not called again: ConnectionError: no route to the server\n"
    )


def test_on_stats_must_be_a_function_and_is_left_out_of_a_pickle_if_it_cannot_be_pickled() -> None:
    calls: list[Any] = [partial(watch, []), partial(autopilot, DataLoader(TensorDataset(torch.zeros(6))))]
    for call in calls:
        with pytest.raises(UsageError, match="on_stats=5 is not a function of the stats"):
            call(on_stats=5)
    loader = autopilot(DataLoader(TensorDataset(torch.zeros(6)), 2), on_stats=lambda stats: None)
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 3


def test_a_copy_is_watched_and_an_iterator_has_its_length() -> None:
    watched = copy.copy(watch([5, 6, 7]))
    assert list(watched) == [5, 6, 7]
    iterator: Any = iter(watch(DataLoader(TensorDataset(torch.zeros(6)), 2)))
    assert len(iterator) == 3


def test_the_gap_before_an_epoch_begins_at_the_last_batch_of_one_that_was_left() -> None:
    loop = Loop(wait=1.0, step=0.0, batches=20)
    meter = WaitMeter(loop.stats.append, clock=lambda: loop.now)
    for length in (20, 15):
        for number in WatchedLoader(loop, meter):
            if number == length - 1:
                break
        loop.now += 5.0
    assert [stats["data/epoch_gap_seconds"] for stats in loop.stats] == [0.0, 0.0, 6.0]


def test_the_stats_are_rate_wait_share_and_percentiles() -> None:
    loop = Loop(wait=0.02, step=0.08, batches=500)
    loop.run()
    assert len(loop.stats) == 4
    assert loop.stats[0]["data/batches_per_second"] == pytest.approx(10, rel=0.02)
    assert loop.stats[0]["data/wait_share"] == pytest.approx(0.2, rel=0.02)
    assert loop.stats[0]["data/wait_seconds_p99"] == pytest.approx(0.02)


@pytest.mark.parametrize(("wait", "sentences"), [(0.02, 1), (0.005, 0)])
def test_a_loop_that_waits_long_enough_gets_one_sentence(
    wait: float, sentences: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Loop(wait, step=0.1 - wait, batches=1500).run()
    assert capsys.readouterr().err.count("of the time for data") == sentences


@pytest.mark.parametrize(("slower", "sentences"), [(1.3, 1), (1.0, 0)])
def test_a_rate_below_the_predicted_interval_gets_one_sentence(
    slower: float, sentences: int, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = make_profile()
    seconds = profile.search.batch_samples / profile.result.samples_per_second * slower
    loop = Loop(wait=0.01 * seconds, step=0.99 * seconds, batches=int(100 / seconds))
    loop.run(TunedLoader(profile, profile.config))
    assert capsys.readouterr().err.count("below the predicted") == sentences
    assert loop.stats[0]["data/rate_to_prediction"] == pytest.approx(1 / slower, rel=0.02)


def test_the_prediction_is_that_for_the_training_processes_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, machine = make_profile(), read_machine()
    for processes, rate in ((1, 6400.0), (2, 640.0)):
        result = one.result.model_copy(update={"samples_per_second": rate, "samples_per_second_ci95": None})
        workload = one.workload.model_copy(update={"nproc_per_node": processes})
        changes = {"hardware": machine.of_host(processes).hardware(None), "result": result, "workload": workload}
        save_profile(tmp_path / "tuned.json", one.model_copy(update=changes))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    loop = Loop(wait=0.0, step=one.search.batch_samples / 640.0, batches=200)
    loop.run(tmp_path / "tuned.json")
    assert loop.stats[0]["data/rate_to_prediction"] == pytest.approx(1.0, rel=0.02)


def test_epochs_shorter_than_a_window_are_not_reported() -> None:
    loop = Loop(wait=0.02, step=0.08, batches=3)
    loop.run()
    assert loop.stats == []


def test_an_iterator_starts_its_workers_at_once_and_goes_on_after_an_error() -> None:
    started, batches = list[int](), iter([1, 2, 3])

    class Loader:
        def __iter__(self) -> Loader:
            started.append(1)
            return self

        def __next__(self) -> int:
            if (batch := next(batches)) == 2:
                raise ValueError(batch)
            return batch

    iterator = iter(watch(Loader()))
    assert (started, next(iterator)) == ([1], 1)
    with pytest.raises(ValueError, match="2"):
        next(iterator)
    assert next(iterator) == 3


def test_a_loader_without_a_length_is_true_as_without_watch() -> None:
    assert bool(watch(iter([1])))
    assert not watch([])


def test_the_sentence_is_printed_by_the_first_process_of_a_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, sentences in (("3", 0), ("0", 1)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        Loop(wait=1.0, step=1.0, batches=60).run()
        assert len(capsys.readouterr().err.splitlines()) == sentences
