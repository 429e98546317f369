"""Windows: which parts of a training run count, by a clock that the tests set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from autotune.online.controller import Controller
from autotune.online.group import WorkerSettings
from autotune.online.windows import MAX_WINDOW_SECONDS, PAUSE_SECONDS, WINDOW_SECONDS, Window, Windows
from autotune.online.worker import WorkerCounters

OWN = WorkerSettings(2, 2)


@dataclass
class Run:
    """A training run on a clock of its own, with one epoch after the other."""

    persists: bool = False
    now: float = 100.0

    # of the epoch, as `Epoch` has them
    settings = OWN
    delivered = drawn = 0
    wait_seconds = returned_at = returned_cpu_seconds = started_at = first_at = first_wait_seconds = 0.0
    is_whole = False

    def __post_init__(self) -> None:
        self.controller = Controller(OWN, OWN, cpus=2, limit=lambda prefetch, kept: 64)
        self.windows = Windows(WorkerCounters(), self.controller, persists=self.persists)
        self.found = list[Window]()

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 0.0

    def train(self, steps: int, seconds: float = 0.1, wait: float = 0.0) -> None:
        """Take batches, for each of which it waits, and takes one step."""
        for _ in range(steps):
            self.ask()
            self.delivered += 1
            self.now += wait
            self.wait_seconds += wait
            self.returned_at = self.now
            if self.delivered == 1:
                self.first_at, self.first_wait_seconds = self.now, self.wait_seconds
            self.now += seconds

    def train_in_periods(self, periods: int, steps: int, seconds: float) -> None:
        """Train in periods of some steps, and pause for 0.8 s after each."""
        for _ in range(periods):
            self.train(steps, seconds)
            self.now += 0.8

    def ask(self) -> None:
        """Ask for a batch, or for the end of the epoch."""
        epoch: Any = self
        while self.windows.note_batch(epoch) and (window := self.windows.advance(epoch)) is not None:
            self.found.append(window)

    def begin(self) -> None:
        """Begin an epoch."""
        if (window := self.windows.begin_epoch()) is not None:
            self.found.append(window)
        self.delivered, self.wait_seconds = 0, 0.0
        self.started_at = self.first_at = self.returned_at = self.now
        self.windows.enter(self)  # type: ignore[arg-type]

    def end(self) -> None:
        """End an epoch after its last batch."""
        self.ask()
        self.is_whole, self.returned_at = True, self.now
        self.leave()

    def leave(self) -> None:
        """Begin another epoch, or something else, without asking for the end of this one."""
        self.windows.leave(self)  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["workers end with an epoch", "persistent workers"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    made = Run(request.param)
    monkeypatch.setattr("autotune.online.windows.time", made)
    return made


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)


def test_windows_have_the_rate_of_the_steps_and_the_shortest_length(run: Run) -> None:
    run.begin()
    run.train(200)
    assert len(run.found) > 5
    for window in run.found:
        assert window.rate == pytest.approx(10.0)
        assert WINDOW_SECONDS <= window.seconds < WINDOW_SECONDS + 0.5


def test_the_windows_of_slow_batches_are_longer(run: Run) -> None:
    run.begin()
    run.train(60, seconds=1.6)
    assert {window.batches for window in run.found} == {5.0}
    assert run.found[0].seconds > MAX_WINDOW_SECONDS


@pytest.mark.parametrize(("rate", "is_early"), [(50.0, True), (95.0, False)])
def test_a_try_that_is_clearly_poor_ends_early(rate: float, is_early: bool, run: Run) -> None:
    run.controller.windows[WorkerSettings(4, 2)] = Window(batches=100, seconds=1.0)
    run.begin()
    run.train(300, seconds=1 / rate)
    assert (run.found[0].seconds < WINDOW_SECONDS / 2) is is_early


def test_a_rare_pause_of_the_training_does_not_count(run: Run) -> None:
    run.begin()
    run.train(12)
    run.now += 5.0  # it validates
    run.train(12)
    assert [window.rate for window in run.found] == [pytest.approx(10.0, rel=0.1)]  # but for the step before it


def test_a_pause_after_the_last_batch_of_an_epoch_does_not_count(run: Run) -> None:
    for _ in range(12):
        run.begin()
        run.train(100)
        run.now += 20.0  # it validates before it asks for the end
        run.end()
    assert [window.rate for window in run.found] == pytest.approx([10.0] * len(run.found), rel=0.05)


def test_steps_that_become_slower_are_no_pauses(run: Run) -> None:
    run.begin()
    run.train(600, seconds=0.04)
    run.train(200, seconds=0.3)
    assert [window.rate for window in run.found[-5:]] == pytest.approx([1 / 0.3] * 5)


def test_a_long_step_of_every_few_is_no_pause(run: Run) -> None:
    run.begin()
    for _ in range(60):
        run.train(7, seconds=0.03)
        run.train(1, seconds=0.4)  # of the optimizer, after the gradients of eight batches
    assert [window.rate for window in run.found[1:]] == pytest.approx([8 / 0.61] * (len(run.found) - 1), rel=0.25)


@pytest.mark.usefixtures("on_gpu")
def test_pauses_of_different_windows_of_short_epochs_do_not_recur(run: Run) -> None:
    for number in range(60):
        run.begin()
        run.train(40, seconds=0.02)
        run.now += 1.0 if number in {5, 25, 45} else 0.0
        run.train(40, seconds=0.02)
        run.end()
    assert [window.rate for window in run.found] == pytest.approx([50.0] * len(run.found), rel=0.05)


@pytest.mark.parametrize("steps", [10, 20, 100])
def test_frequent_pauses_of_the_training_do_not_count_on_a_cpu(steps: int, run: Run) -> None:
    run.begin()
    run.train_in_periods(400 // steps, steps, seconds=0.02)
    assert run.found
    assert [window.rate for window in run.found] == pytest.approx([50.0] * len(run.found), rel=0.02)


@pytest.mark.usefixtures("on_gpu")
def test_the_pauses_of_a_device_that_is_many_steps_behind_count(run: Run) -> None:
    run.begin()
    run.train_in_periods(40, 20, seconds=0.01)
    assert run.found
    assert [window.rate for window in run.found[1:]] == pytest.approx([20.0] * (len(run.found) - 1), rel=0.05)


def test_a_pause_after_the_first_batch_of_a_window_does_not_count(run: Run) -> None:
    run.begin()
    run.train(5)  # after the first of which the window begins
    run.now += 5.0
    run.train(20)
    assert run.found[0].rate == pytest.approx(10.0, rel=0.1)


def test_a_pause_is_one_however_long_the_training_waits_for_batches(run: Run) -> None:
    run.begin()
    for step in range(60):
        run.train(1, seconds=0.01, wait=0.2)
        run.now += 0.5 * (step == 30)
    assert [window.rate for window in run.found] == pytest.approx([1 / 0.21] * len(run.found), rel=0.02)


@pytest.mark.usefixtures("on_gpu")
def test_windows_with_recurring_pauses_are_not_compared_with_those_without(run: Run) -> None:
    run.controller.windows[OWN] = run.controller.windows[WorkerSettings(1, 2)] = Window(batches=100, seconds=1.0)
    run.begin()
    run.train_in_periods(4, 20, seconds=0.01)
    assert run.controller.windows == {}
    assert run.controller.settings == OWN


@pytest.mark.usefixtures("on_gpu")
def test_pauses_that_recur_no_more_are_left_out_for_good(run: Run) -> None:
    run.begin()
    run.train_in_periods(10, 20, seconds=0.01)
    run.train(2000, seconds=0.01)
    del run.found[:]
    run.train_in_periods(10, 20, seconds=0.01)
    run.train(200, seconds=0.01)
    assert [window.rate for window in run.found] == pytest.approx([100.0] * len(run.found), rel=0.1)


@pytest.mark.usefixtures("on_gpu")
def test_after_convergence_a_window_ends_with_a_recurring_pause_too(run: Run) -> None:
    run.begin()
    run.train_in_periods(21, 20, seconds=0.01)
    run.controller.has_converged = True
    run.train_in_periods(179, 20, seconds=0.01)
    assert run.found[-1].seconds > 29.0
    assert [window.rate for window in run.found[1:]] == pytest.approx([20.0] * (len(run.found) - 1), rel=0.05)


def test_slow_steps_are_no_pauses(run: Run) -> None:
    run.begin()
    run.train(40, seconds=3 * PAUSE_SECONDS)
    assert {round(window.rate, 3) for window in run.found} == {round(1 / (3 * PAUSE_SECONDS), 3)}


def test_a_window_goes_on_in_the_next_epoch_without_what_lies_between(run: Run) -> None:
    run.begin()
    run.train(200, seconds=0.04)  # long enough for windows within it
    before = len(run.found)
    run.end()
    run.now += 20.0
    run.begin()
    run.train(1, seconds=3.0)  # the first step of an epoch is slow
    run.train(200, seconds=0.04)
    assert len(run.found) > before
    assert [window.rate for window in run.found] == pytest.approx([25.0] * len(run.found))


def test_windows_of_short_epochs_are_whole_epochs_with_the_start_of_their_workers(run: Run) -> None:
    for _ in range(12):
        run.begin()
        run.now += 0.2  # the first batch is late
        run.train(10)
        run.end()
        run.now += 20.0
    whole = run.found[1:]  # the first one begins within the first epoch
    assert whole
    assert [window.rate for window in whole] == pytest.approx([10 / 1.2] * len(whole))
    assert all(window.batches % 10 == 0 for window in whole)


def test_a_result_of_a_long_epoch_is_corrected_by_whole_epochs_if_starting_their_workers_takes_long(run: Run) -> None:
    run.controller.has_converged = True
    for wait in (0.0, 5.0, 5.0, 5.0):  # the first epoch began with other workers
        run.begin()
        run.train(1, wait=wait)
        run.train(100)
        run.end()
    run.begin()
    assert run.windows.needs_correction is run.windows.are_epochs is not run.persists
    assert [one.wait_seconds for one in run.found] == ([0.0] if run.persists else [5.0, 5.0])


@pytest.mark.parametrize("steps", [10, 100], ids=["short epochs", "long epochs"])
def test_the_time_after_the_last_batch_does_not_count_if_the_loop_asks_for_no_end(steps: int, run: Run) -> None:
    for _ in range(12):
        run.begin()
        run.train(steps)
        run.now += 20.0  # it validates
        run.leave()
    assert run.found
    assert [window.rate for window in run.found] == pytest.approx([10.0] * len(run.found), rel=0.02)


def test_an_epoch_that_turns_out_to_be_long_has_windows_within_it(run: Run) -> None:
    run.begin()
    run.train(10)
    run.end()
    run.begin()
    run.train(200)
    assert len(run.found) > 2


@pytest.mark.parametrize(("steps", "is_enough"), [(3, False), (40, True)])
def test_the_window_in_which_the_training_ends_counts_if_it_has_batches_enough(
    steps: int, is_enough: bool, run: Run
) -> None:
    epoch: Any = run
    run.begin()
    run.train(4)  # after which a window begins
    run.train(steps, seconds=0.03)
    run.now += 20.0
    window = run.windows.finish(epoch)
    assert (window is not None) is is_enough
    if window is not None:
        assert window.rate == pytest.approx(1 / 0.03, rel=0.1)


def test_a_short_last_epoch_counts_as_a_window_at_the_end_of_the_training(run: Run) -> None:
    for _ in range(3):
        run.begin()
        run.train(30, seconds=0.02)
        run.end()
        run.now += 20.0
    window = run.windows.finish(None)
    assert window is not None
    assert window.rate == pytest.approx(50.0, rel=0.02)


def test_a_window_begins_when_the_batches_under_way_at_a_change_are_delivered(run: Run) -> None:
    run.begin()
    run.train(10)
    run.drawn = run.delivered + 6
    run.windows.restart(run)  # type: ignore[arg-type]
    run.train(6, seconds=1.0)  # slow, and none of the new workers
    run.train(60)
    assert run.found[0].rate == pytest.approx(10.0)


def test_workers_change_after_as_many_batches_as_the_start_of_an_epoch_asks_for(run: Run) -> None:
    epoch: Any = run
    run.controller.settings = WorkerSettings(4, 2)
    run.windows.begin_epoch()
    run.windows.enter(epoch, change_after=3)
    due = []
    for run.delivered in range(5):
        due.append(run.windows.note_batch(epoch))
    assert due == [False, False, False, True, True]


def test_a_look_at_a_batch_does_not_make_epochs_short(run: Run) -> None:
    run.begin()
    run.train(1)
    run.leave()
    run.begin()
    run.train(30)
    assert run.found
