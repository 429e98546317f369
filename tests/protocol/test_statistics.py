from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.protocol.statistics import ROUND_SPREAD, ROUND_WEIGHT, paired_ratio, student_t, throughput_ci95


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_students_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_t(degrees) == pytest.approx(quantile, rel=2e-3)


@pytest.mark.parametrize(("degrees", "quantile"), [(4, 4.604), (6, 3.707), (10, 3.169), (30, 2.750)])
def test_students_quantiles_far_out_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_t(degrees, tail=0.005) == pytest.approx(quantile, rel=1e-2)


@pytest.mark.parametrize("tail", [0.1, 0.15, 0.2, 0.3, 0.4, 0.45])
def test_students_quantiles_are_near_the_closed_form_of_four_degrees(tail: float) -> None:
    """Shaw, Journal of Computational Finance 9 (4), 2006: even numbers of degrees up to four have one."""
    root = math.sqrt(4 * tail * (1 - tail))
    assert student_t(4, tail) == pytest.approx(2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1), rel=5e-5)


def test_students_quantiles_of_many_degrees_are_exact_to_six_places() -> None:
    assert student_t(20) == pytest.approx(2.0859634, rel=5e-7)
    assert student_t(30) == pytest.approx(2.0422725, rel=5e-7)
    assert student_t(30, tail=0.005) == pytest.approx(2.7499957, rel=5e-7)


def test_an_interval_for_the_best_of_several_is_wider_than_one_for_a_single_contestant() -> None:
    rates = [99.0, 100.0, 101.0]
    (low, high), (lower, higher) = throughput_ci95(rates) or (0, 0), throughput_ci95(rates, picked_of=3) or (0, 0)
    assert lower < low < high < higher


def test_rounds_that_agree_by_chance_do_not_promise_more_than_is_usual() -> None:
    low, high = throughput_ci95([100.0, 100.0, 100.0]) or (0.0, 0.0)
    half = student_t(ROUND_WEIGHT + 2) * ROUND_SPREAD * math.sqrt(ROUND_WEIGHT / (ROUND_WEIGHT + 2) / 3)
    assert (low, high) == pytest.approx((100 * math.exp(-half), 100 * math.exp(half)))


def test_rounds_that_scatter_widen_the_interval_and_more_rounds_narrow_it() -> None:
    def width(rates: list[float]) -> float:
        low, high = throughput_ci95(rates) or (0.0, math.inf)
        return high / low

    assert width([90.0, 100.0, 110.0]) > width([99.0, 100.0, 101.0]) > width([99.0, 100.0, 101.0] * 3)


@pytest.mark.parametrize("rates", [[], [5.0]])
def test_fewer_than_two_rounds_have_no_interval(rates: list[float]) -> None:
    assert throughput_ci95(rates) is None


@given(rates=st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=8))
def test_the_interval_of_rounds_is_positive_and_holds_their_geometric_mean(rates: list[float]) -> None:
    low, high = throughput_ci95(rates) or (0.0, 0.0)
    mean = math.exp(sum(math.log(rate) for rate in rates) / len(rates))
    assert 0 < low <= mean * (1 + 1e-9)
    assert mean <= high * (1 + 1e-9)


@given(
    bases=st.lists(st.floats(1, 1e4), min_size=2, max_size=6),
    factor=st.floats(0.1, 10),
)
def test_noise_that_both_share_in_a_round_cancels_in_their_ratio(bases: list[float], factor: float) -> None:
    ratio, interval = paired_ratio([factor * base for base in bases], bases)
    assert ratio == pytest.approx(factor)
    assert interval is not None
    assert interval[1] / interval[0] < 1.3


def test_the_ratio_is_the_median_and_its_interval_is_taken_on_logarithms() -> None:
    ratio, interval = paired_ratio([100.0, 200.0, 400.0], [100.0, 100.0, 100.0])
    variance = (ROUND_WEIGHT * 2 * ROUND_SPREAD**2 + 2 * math.log(2) ** 2) / (ROUND_WEIGHT + 2)
    half = student_t(ROUND_WEIGHT + 2) * math.sqrt(variance / 3)
    assert ratio == pytest.approx(2.0)
    assert interval == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))


def test_a_single_round_gives_a_ratio_without_an_interval() -> None:
    ratio, interval = paired_ratio([300.0], [100.0])
    assert ratio == pytest.approx(3.0)
    assert interval is None


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


def test_rounds_of_others_that_scatter_widen_the_interval_of_rounds_that_agree() -> None:
    agreeing, scattered = [99.0, 100.0, 101.0], [50.0, 100.0, 200.0]
    (low, high), (lower, higher) = (
        throughput_ci95(agreeing) or (0, 0),
        throughput_ci95(agreeing, others=[scattered]) or (0, 0),
    )
    assert lower < low < high < higher
