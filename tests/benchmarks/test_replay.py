"""The replay of recorded grids."""

from __future__ import annotations

import pytest

from benchmarks.replay import Replayed, read_traces, replay

TRACES = {trace.name: trace for trace in read_traces()}


def test_the_default_sampler_is_near_the_best_of_every_grid_within_a_few_trials() -> None:
    runs = [replay(trace, "model", seed=1) for trace in TRACES.values()]
    assert min(run.share for run in runs) >= 0.97
    assert max(run.trials for run in runs) <= 12


def test_the_same_seed_replays_the_same_run() -> None:
    assert replay(TRACES["decode"], "tpe", seed=3) == replay(TRACES["decode"], "tpe", seed=3)


@pytest.mark.parametrize(("trials", "share"), [(1, 0.5), (2, 0.9), (40, 0.9)])
def test_a_run_that_has_ended_keeps_its_best(trials: int, share: float) -> None:
    measured = {"trials": 2, "share": 1.0, "by_trials": (0.5, 0.9), "prediction_error": 0.1}
    run = Replayed(trace="a", sampler="tpe", seed=0, stop_reason="", **measured)
    assert run.share_after(trials) == share
