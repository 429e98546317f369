from __future__ import annotations

import math
import statistics
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from autotune.profiles.nodes import NodeReading
from autotune.profiles.schema import TunedProfile
from autotune.validation.nodes import add_reading, expect_another
from tests.builders import make_profile, make_profile_result

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def make_tuned() -> TunedProfile:
    return make_profile(result=make_profile_result(samples_per_second=1000.0, samples_per_second_ci95=(980.0, 1020.0)))


def read(node: str, rate: float) -> NodeReading:
    return NodeReading(node=node, samples_per_second=rate, created_at=NOW)


def test_the_interval_of_a_promise_grows_with_what_equal_machines_differ_by() -> None:
    alike, unlike = make_tuned(), make_tuned()
    for number in range(4):
        alike = add_reading(alike, read(f"n{number}", 1000.0 + number))
        unlike = add_reading(unlike, read(f"n{number}", 700.0 + 100 * number))
    assert alike.predicted_ci95 is not None
    assert unlike.predicted_ci95 is not None
    assert 900 < alike.predicted_ci95[0] < 980
    assert unlike.predicted_ci95[0] < 700
    assert unlike.predicted_ci95[1] > 1020


def test_a_machine_that_is_read_again_replaces_its_reading() -> None:
    profile = add_reading(add_reading(make_tuned(), read("a", 900.0)), read("a", 990.0))
    assert profile.nodes is not None
    assert [one.samples_per_second for one in profile.nodes.readings] == [990.0]


def test_without_readings_the_promise_is_that_of_the_tuned_machine() -> None:
    assert make_tuned().predicted_ci95 == (980.0, 1020.0)


@given(st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=20))
def test_the_interval_for_another_machine_holds_the_middle_of_those_seen(rates: list[float]) -> None:
    low, high = expect_another(rates, None)
    middle = math.exp(statistics.fmean(map(math.log, rates)))
    assert low < middle < high
