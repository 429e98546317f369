"""Division of the time of --timeout, on a clock that only measurements advance."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.time_budget import TimeBudget
from tests.builders import make_config, make_request, make_result


class FakeTime:
    """A run on a manual clock."""

    def __init__(self, start_seconds: float | None = None, **request: Any) -> None:
        self.now = 1000.0
        self.budget = TimeBudget(make_request(**request), lambda: self.now)
        if start_seconds is not None:
            self.budget.start_seconds = start_seconds
        self.budget.begin_search()

    def measure(self, seconds: float, *, fresh: bool = False) -> None:
        def run_trial(request: TrialRequest) -> TrialResult:
            self.now += seconds
            return make_result(request.config, 100.0)

        self.budget.timed(run_trial)(TrialRequest(config=make_config(), epochs=10, seconds=2.0, new_process=fresh))

    def count_trials(self, seconds: float) -> int:
        tried = 0
        while self.budget.allows_trial(tried) and tried < 1000:
            self.measure(seconds)
            tried += 1
        return tried


def test_without_a_limit_there_is_always_time() -> None:
    time = FakeTime()
    time.now += 1e6
    assert time.budget.left_seconds == math.inf
    assert time.budget.allows_trial(1000)
    assert time.budget.allows_runs(1)


@pytest.mark.parametrize(
    ("timeout", "start_seconds", "trial", "reserve"),
    [
        (300.0, None, 2.5, 6 * 6.5),
        (300.0, 1.0, 2.5, 6 * 4.5),
        (90.0, 10.0, 2.0, 45.0),  # half of the time
        (90.0, 30.0, 2.0, 66.0),  # two runs
    ],
)
def test_the_search_leaves_time_for_the_validation(
    timeout: float, start_seconds: float | None, trial: float, reserve: float
) -> None:
    time = FakeTime(start_seconds, timeout_seconds=timeout, trial_seconds=3.0)
    time.count_trials(trial)
    assert reserve <= time.budget.left_seconds < reserve + trial


def test_two_trials_run_even_if_too_little_time_is_left_for_the_validation() -> None:
    assert FakeTime(20.0, timeout_seconds=10.0).count_trials(2.0) == 2


def test_measured_runs_replace_the_estimate_of_their_duration() -> None:
    time = FakeTime(1.0, timeout_seconds=60.0)
    for seconds in (25.0, 15.0):
        time.measure(seconds, fresh=True)
        assert time.budget.allows_runs(1)
    time.now += 6.0
    assert not time.budget.allows_runs(1)


def test_the_duration_of_a_run_is_divided_into_its_phases() -> None:
    time = FakeTime()
    time.now += 20.0
    time.budget.begin_phase("validation")
    time.now += 3.0
    time.budget.begin_phase("search")
    time.now += 1.0
    assert time.budget.phase_seconds == {"profiling": 0.0, "search": 21.0, "validation": 3.0}
