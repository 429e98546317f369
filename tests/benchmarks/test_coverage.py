"""Coverage of the intervals of the validation, by simulation."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.coverage import RUNS, SPREADS, TRUTHS, plan_simulation, simulate_many

MIN_COVERAGE = 0.93
MAX_FALSE_GAINS = 0.05


def test_intervals_cover_the_true_value_although_the_best_was_selected_and_runs_were_added() -> None:
    plan = plan_simulation()
    runs = RUNS // (len(SPREADS) * len(TRUTHS)) + 1
    found = [
        one for truths in TRUTHS.values() for spread in SPREADS for one in simulate_many(plan, truths, spread, runs)
    ]
    speedups = [one.speedup for one in found if one.speedup is not None]
    assert len(speedups) > RUNS / 4
    assert statistics.fmean(one.rate for one in found) >= MIN_COVERAGE
    assert statistics.fmean(speedups) >= MIN_COVERAGE


@pytest.mark.parametrize("candidates", [1, 3])
def test_faster_is_wrong_in_at_most_a_twentieth_of_runs_that_scatter_widely(candidates: int) -> None:
    found = simulate_many(plan_simulation(), (1.0,) * (1 + candidates), max(SPREADS), RUNS)
    assert 0 < statistics.fmean(one.is_faster for one in found) <= MAX_FALSE_GAINS
