from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.protocol.statistics import (
    PAIR_SPREAD,
    ROUND_SPREAD,
    ROUND_WEIGHT,
    TAIL,
    TRAINING_SHARE,
    combine_ratio,
    paired_ratio,
    student_t,
    throughput_ci95,
)


@pytest.mark.parametrize(
    ("degrees", "tail", "quantile", "precision"),
    [
        *((3, TAIL, 3.182, 2e-3), (4, TAIL, 2.776, 2e-3), (10, TAIL, 2.228, 2e-3), (1000, TAIL, 1.962, 2e-3)),
        *((4, 0.005, 4.604, 1e-2), (6, 0.005, 3.707, 1e-2), (10, 0.005, 3.169, 1e-2)),
        *((20, TAIL, 2.0859634, 5e-7), (30, TAIL, 2.0422725, 5e-7), (30, 0.005, 2.7499957, 5e-7)),
    ],
)
def test_quantiles_of_students_t_match_the_tables(degrees: int, tail: float, quantile: float, precision: float) -> None:
    assert student_t(degrees, tail) == pytest.approx(quantile, rel=precision)


def test_runs_that_agree_by_chance_have_an_interval_of_the_prior() -> None:
    low, high = throughput_ci95([100.0, 100.0, 100.0]) or (0.0, 0.0)
    half = student_t(ROUND_WEIGHT + 2) * ROUND_SPREAD * math.sqrt(ROUND_WEIGHT / (ROUND_WEIGHT + 2))
    half *= math.sqrt(1 / 3 + TRAINING_SHARE)
    assert (low, high) == pytest.approx((100 * math.exp(-half), 100 * math.exp(half)))


@pytest.mark.parametrize(
    ("rates", "changes"),
    [
        *(([90.0, 100.0, 110.0], {}), ([99.0, 101.0], {})),
        ([99.0, 100.0, 101.0], {"picked_of": 3}),
        ([99.0, 100.0, 101.0], {"others": [[50.0, 100.0, 200.0]]}),
    ],
)
def test_scatter_selection_and_fewer_runs_widen_the_interval(rates: list[float], changes: dict[str, Any]) -> None:
    low, high = throughput_ci95([99.0, 100.0, 101.0]) or (0.0, math.inf)
    lower, higher = throughput_ci95(rates, **changes) or (math.inf, 0.0)
    assert lower < low < high < higher


@pytest.mark.parametrize("rates", [[], [5.0]])
def test_fewer_than_two_runs_have_no_interval(rates: list[float]) -> None:
    assert throughput_ci95(rates) is None


def test_nothing_has_no_interval_although_others_show_how_much_runs_vary() -> None:
    others = [[100.0, 101.0], [50.0, 51.0]]
    assert throughput_ci95([], others=others) is None
    assert throughput_ci95([100.0], others=others) is not None
    assert paired_ratio([300.0], [100.0])[1] is None


@given(bases=st.lists(st.floats(1, 1e4), min_size=2, max_size=6), factor=st.floats(0.1, 10))
def test_noise_that_both_share_in_a_repetition_cancels_in_their_ratio(bases: list[float], factor: float) -> None:
    ratio, interval = paired_ratio([factor * base for base in bases], bases)
    assert ratio == pytest.approx(factor)
    assert interval is not None
    assert interval[1] / interval[0] < 1.3


def test_the_ratio_is_the_median_and_its_interval_is_taken_on_logarithms() -> None:
    ratio, interval = paired_ratio([100.0, 200.0, 400.0], [100.0, 100.0, 100.0])
    variance = (ROUND_WEIGHT * 2 * PAIR_SPREAD**2 + 2 * math.log(2) ** 2) / (ROUND_WEIGHT + 2)
    half = student_t(ROUND_WEIGHT + 2) * math.sqrt(variance / 3)
    assert ratio == pytest.approx(2.0)
    assert interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))


@given(st.floats(0.5, 2.0), st.floats(0.01, 0.5), st.floats(0.5, 2.0), st.floats(0.001, 0.5), st.integers(1, 5))
def test_a_ratio_combined_with_another_estimate_lies_between_both_with_a_narrower_interval(
    ratio: float, half: float, expected: float, error: float, picked_of: int
) -> None:
    own = (ratio * math.exp(-half), ratio * math.exp(half))
    combined, (low, high) = combine_ratio(ratio, own, expected, error, picked_of)
    assert min(ratio, expected) <= combined * 1.000001
    assert combined <= max(ratio, expected) * 1.000001
    assert low <= combined <= high
    assert high / low <= own[1] / own[0] * 1.000001


def test_two_equal_estimates_narrow_the_interval_by_the_square_root_of_two() -> None:
    error = 0.1
    half = error * 1.959964
    ratio, (low, high) = combine_ratio(1.2, (1.2 * math.exp(-half), 1.2 * math.exp(half)), 1.2, error)
    assert ratio == pytest.approx(1.2)
    assert math.log(high / low) == pytest.approx(2 * half / math.sqrt(2), rel=1e-5)
