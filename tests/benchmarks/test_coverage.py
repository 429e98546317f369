"""Simulated runs with a known truth: do the intervals hold that a run states of what it has picked?"""

from __future__ import annotations

import statistics

from benchmarks.coverage import RUNS, SPREADS, TRUTHS, make_plan, simulate_many

LEAST_COVERAGE = 0.93


def test_intervals_hold_the_truth_although_the_best_was_picked_and_rounds_were_added() -> None:
    plan = make_plan()
    runs = RUNS // (len(SPREADS) * len(TRUTHS))
    found = [
        one for truths in TRUTHS.values() for spread in SPREADS for one in simulate_many(plan, truths, spread, runs)
    ]
    speedups = [one.speedup for one in found if one.speedup is not None]
    assert len(found) == RUNS
    assert len(speedups) > RUNS / 2
    assert statistics.fmean(one.rate for one in found) >= LEAST_COVERAGE
    assert statistics.fmean(speedups) >= LEAST_COVERAGE
