"""Division of the time of --timeout, on a clock that only measurements move."""

from __future__ import annotations

import math

import pytest

from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.schedule import TimeBudget
from tests.builders import make_config, make_request, make_result


class FakeClock:
    """A clock that stands still until somebody takes time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def spend(budget: TimeBudget, clock: FakeClock, seconds: float, *, fresh: bool = False) -> None:
    """Run a measurement that takes so long, of which it measures two seconds."""

    def run_trial(request: TrialRequest) -> TrialResult:
        clock.now += seconds
        return make_result(request.config, 100.0)

    budget.timed(run_trial)(TrialRequest(config=make_config(), epochs=10, seconds=2.0, fresh=fresh))


def count_trials(budget: TimeBudget, clock: FakeClock, seconds: float) -> int:
    """Search with trials that take so long, to the end of the time for it."""
    tried = 0
    while budget.allows_trial(tried) and tried < 1000:
        spend(budget, clock, seconds)
        tried += 1
    return tried


def test_without_a_limit_there_is_always_time() -> None:
    clock = FakeClock()
    budget = TimeBudget(make_request(), clock)
    budget.begin_search(12)
    clock.now += 1e6
    assert budget.left_seconds == math.inf
    assert budget.allows_trial(1000)
    assert budget.allows_runs(1)


@pytest.mark.parametrize(("start_seconds", "kept"), [(None, 12 * 6.5), (1.0, 12 * 4.5), (0.0, 12 * 3.5)])
def test_the_time_kept_for_the_validation_follows_what_a_start_was_seen_to_take(
    start_seconds: float | None, kept: float
) -> None:
    clock = FakeClock()
    budget = TimeBudget(make_request(timeout_seconds=300.0, trial_seconds=3.0), clock)
    if start_seconds is not None:
        budget.note_start(start_seconds)
    budget.begin_search(12)
    count_trials(budget, clock, 2.5)  # half a second beyond what it measures
    assert kept <= budget.left_seconds < kept + 2.5


def test_the_validation_gets_at_most_half_of_the_time_but_always_enough_for_one_pair() -> None:
    clock = FakeClock()
    for start_seconds, kept in ((10.0, 45.0), (30.0, 66.0)):
        budget = TimeBudget(make_request(timeout_seconds=90.0, trial_seconds=3.0), clock)
        budget.note_start(start_seconds)
        budget.begin_search(12)
        count_trials(budget, clock, 2.0)
        assert kept <= budget.left_seconds < kept + 2.0


def test_two_trials_are_made_even_where_that_leaves_too_little_for_the_validation() -> None:
    clock = FakeClock()
    budget = TimeBudget(make_request(timeout_seconds=10.0), clock)
    budget.note_start(20.0)
    budget.begin_search(12)
    assert count_trials(budget, clock, 2.0) == 2


def test_once_processes_were_started_what_they_took_counts() -> None:
    clock = FakeClock()
    budget = TimeBudget(make_request(timeout_seconds=60.0), clock)
    budget.note_start(1.0)
    budget.begin_search(12)
    spend(budget, clock, 25.0, fresh=True)
    assert budget.allows_runs(1)
    spend(budget, clock, 15.0, fresh=True)
    assert budget.allows_runs(1)
    clock.now += 6.0
    assert not budget.allows_runs(1)


def test_the_seconds_of_a_run_are_divided_into_its_phases() -> None:
    clock = FakeClock()
    budget = TimeBudget(make_request(), clock)
    clock.now += 5.0
    budget.begin_search(12)
    clock.now += 20.0
    budget.begin_phase("validation")
    clock.now += 3.0
    assert budget.phase_seconds == {"profiling": 5.0, "search": 20.0, "validation": 3.0}
    budget.begin_phase("search")
    clock.now += 1.0
    assert budget.phase_seconds["search"] == 21.0
