from __future__ import annotations

import pytest

from benchmarks.libraries import LibraryResult, describe

RESULT = LibraryResult(
    name="stateful",
    option="--dataset",
    package="torchdata 0.11.0",
    measured="torchdata.StatefulDataLoader",
    choice="w=2 pf=2 bs=32",
    verdict="faster",
    predicted=150.0,
    predicted_baseline=100.0,
    speedup=1.5,
    tuning_seconds=90.0,
    baseline_runs=(100.0, 50.0, 100.0),
    tuned_runs=(120.0, 100.0, 150.0),
)


def test_the_speed_up_of_whole_runs_is_the_median_of_pairs() -> None:
    assert RESULT.true_speedup == pytest.approx(1.5)
    assert RESULT.deviation == pytest.approx(0.0)


def test_a_loader_that_is_best_as_it_is_has_no_speed_up_to_be_held_to() -> None:
    kept = RESULT.model_copy(update={"speedup": None, "verdict": "keep"})
    assert kept.deviation is None
    assert "| keep | 1.50 x |  |" in describe([kept])[-1]


def test_each_loader_has_a_row_of_what_was_predicted_and_what_was_true() -> None:
    assert describe([RESULT])[-1].endswith("| w=2 pf=2 bs=32 | 1.50 x | 1.50 x | +0.0 % |")
