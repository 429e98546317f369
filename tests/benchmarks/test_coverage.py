"""Coverage of the intervals of the validation, by simulation."""

from __future__ import annotations

import statistics

from benchmarks.coverage import RUNS, SPREADS, TRUTHS, plan_simulation, simulate_many

MIN_COVERAGE = 0.93


def test_intervals_cover_the_true_value_although_the_best_was_selected_and_runs_were_added() -> None:
    plan = plan_simulation()
    runs = RUNS // (len(SPREADS) * len(TRUTHS))
    found = [
        one for truths in TRUTHS.values() for spread in SPREADS for one in simulate_many(plan, truths, spread, runs)
    ]
    speedups = [one.speedup for one in found if one.speedup is not None]
    assert len(found) == RUNS
    assert len(speedups) > RUNS / 2
    assert statistics.fmean(one.rate for one in found) >= MIN_COVERAGE
    assert statistics.fmean(speedups) >= MIN_COVERAGE
