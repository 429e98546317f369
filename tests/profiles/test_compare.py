from __future__ import annotations

from typing import Any

import pytest

from autotune.cli.compare import describe_comparison
from autotune.profiles.compare import compare_results
from autotune.profiles.schema import TunedProfile
from tests.builders import make_config, make_profile, make_profile_result


def make_result_of(name: str, rate: float, interval: tuple[float, float] | None, **changes: Any) -> TunedProfile:
    result = make_profile_result(samples_per_second=rate, samples_per_second_ci95=interval)
    return make_profile(name, result=result, **changes)


def test_a_difference_within_both_intervals_is_none() -> None:
    found = compare_results(make_result_of("a", 100, (95, 105)), make_result_of("b", 103, (98, 108)))
    assert not found.is_beyond_noise
    assert "no difference beyond noise" in describe_comparison(found)


def test_a_difference_beyond_both_intervals_is_said_with_its_interval() -> None:
    found = compare_results(make_result_of("a", 100, (98, 102)), make_result_of("b", 150, (147, 153)))
    assert found.is_beyond_noise
    assert found.ratio_ci95 is not None
    low, high = found.ratio_ci95
    assert low < 1.5 < high < 1.6
    assert "no difference" not in describe_comparison(found)


def test_a_result_that_was_never_confirmed_needs_a_larger_difference() -> None:
    found = compare_results(make_result_of("a", 100, None), make_result_of("b", 110, None))
    assert not found.is_beyond_noise


@pytest.mark.parametrize(("was", "now"), [(0, 100), (100, 0), (0, 0)])
def test_where_nothing_was_delivered_there_is_no_ratio(was: float, now: float) -> None:
    found = compare_results(make_result_of("a", was, None), make_result_of("b", now, (90, 110)))
    assert (found.ratio, found.ratio_ci95, found.is_beyond_noise) == (None, None, False)
    assert "cannot be compared" in describe_comparison(found)


@pytest.mark.parametrize(("was", "now"), [(5e-324, 1e30), (1e30, 5e-324)])
def test_numbers_at_their_bounds_are_compared(was: float, now: float) -> None:
    first, second = make_result_of("a", was, (5e-324, 1e30)), make_result_of("b", now, (5e-324, 1e30))
    assert describe_comparison(compare_results(first, second))


def test_settings_and_conditions_that_differ_are_named() -> None:
    first = make_result_of("a", 100, (98, 102), dataloader=make_config(2).dataloader)
    other = first.hardware.model_copy(update={"usable_cpus": 64.0})
    second = make_result_of("b", 100, (98, 102), dataloader=make_config(8).dataloader, hardware=other)
    text = describe_comparison(compare_results(first, second))
    assert "num_workers 2 -> 8" in text
    assert "CPUs 64 instead of" in text


@pytest.mark.parametrize("interval", [(98.0, 102.0), None])
def test_a_result_compared_with_itself_does_not_differ(interval: tuple[float, float] | None) -> None:
    result = make_result_of("a", 100, interval)
    found = compare_results(result, result)
    assert (found.settings, found.conditions, found.ratio) == ((), (), 1.0)
    assert "the same settings" in describe_comparison(found)
