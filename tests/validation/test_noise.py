"""Disturbances of the machine during the validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from autotune.validation.noise import READING_SECONDS, NoiseMonitor, measure_drift
from hypothesis import given
from hypothesis import strategies as st

from autotune.system.cgroups import CpuCounters
from tests.builders import make_counters

RATES = st.lists(st.lists(st.floats(1e-3, 1e6), max_size=6), max_size=6)


def play(*readings: CpuCounters | None) -> Callable[[], CpuCounters | None]:
    """Build a reader that returns these readings one after another."""
    rest = iter(readings)
    return lambda: next(rest)


def skip_sleep(seconds: float) -> None:
    """Sleep for no time."""


def number_runs(*rates: Sequence[float]) -> list[Mapping[int, float]]:
    return [dict(enumerate(of_config, start=1)) for of_config in rates]


@pytest.mark.parametrize(
    ("rates", "drift"),
    [
        (number_runs([100.0, 100.0, 80.0], [10.0, 10.0, 8.0]), 0.25),
        (number_runs([100.0, 110.0], [110.0, 100.0]), 0.0),
        (number_runs([100.0, 112.0, 105.0]), 0.12),
        (number_runs([100.0, 120.0], [50.0], [7.0]), 0.2),
        (number_runs([100.0, 100.0, 100.0], [10.0, 10.0]), 0.0),
        ([{1: 100.0, 2: 100.0, 3: 120.0}, {1: 10.0, 3: 12.0}], 0.2),
        (number_runs(), 0.0),
        (number_runs([], [100.0], [7.0]), 0.0),
    ],
    ids=["shared", "opposite", "single", "measured once", "dropped", "rested", "nothing", "one run"],
)
def test_drift_is_what_all_configurations_of_a_run_share(rates: list[Mapping[int, float]], drift: float) -> None:
    assert measure_drift(rates) == pytest.approx(drift, abs=0.03 if len(rates) == 2 and 2 not in rates[1] else 1e-9)


@given(rates=RATES, factors=st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=6))
def test_drift_is_never_negative_and_does_not_depend_on_how_fast_each_configuration_is(
    rates: list[list[float]], factors: list[float]
) -> None:
    scaled = [[rate * factor for rate in of_config] for of_config, factor in zip(rates, factors, strict=False)]
    assert measure_drift(number_runs(*rates)) >= 0
    assert measure_drift(number_runs(*scaled)) == pytest.approx(measure_drift(number_runs(*rates)), rel=1e-6, abs=1e-9)


@given(paces=st.lists(st.floats(0.1, 10), min_size=2, max_size=5), rates=st.lists(st.floats(1, 1e4), min_size=1))
def test_shared_drift_is_found_exactly(paces: list[float], rates: list[float]) -> None:
    runs = number_runs(*([rate * pace for pace in paces] for rate in rates))
    assert measure_drift(runs) == pytest.approx(max(paces) / min(paces) - 1, rel=1e-6, abs=1e-9)


def describe(
    others: Sequence[float] = (), usable_cpus: float = 2.0, steal: float = 0.0, throttled: int = 0, drift: float = 0.0
) -> tuple[str, ...]:
    """Describe a validation with these disturbances; others are CPUs, one reading each."""
    start = make_counters(total=0.0, quotas=[(0, 0)])
    end = make_counters(total=100.0, steal=100.0 * steal, quotas=[(100, throttled)])
    readings = [(make_counters(), make_counters(busy=cpus * READING_SECONDS)) for cpus in others]
    read = play(start, *(reading for pair in readings for reading in pair), end)
    monitor = NoiseMonitor(usable_cpus, read, skip_sleep)
    monitor.start()
    for _ in others:
        monitor.measure_others()
    return monitor.describe(number_runs([100.0, 100.0 * (1 + drift)]))


def test_a_quiet_machine_is_not_described() -> None:
    assert describe() == ()
    assert describe(others=(0.15,), usable_cpus=1.0, steal=0.03, throttled=10, drift=0.079) == ()


@pytest.mark.parametrize(
    ("disturbance", "words"),
    [
        ({"others": (0.7,)}, "Other processes kept 0.7 CPUs busy during the validation (limit 0.15 of 2 usable)"),
        ({"steal": 0.034}, "3.4% of the CPU time to other virtual machines during the validation (limit 3%)"),
        ({"throttled": 42}, "used up in 42.0% of its periods during the validation (limit 10%), as expected"),
        ({"drift": 0.12}, "became 12.0% slower or faster between runs (limit 8%)"),
    ],
)
def test_each_disturbance_has_a_sentence_with_its_number_limit_and_next_step(
    disturbance: dict[str, float], words: str
) -> None:
    (sentence,) = describe(**disturbance)  # type: ignore[arg-type]  # a keyword of any type
    assert words in sentence
    assert "tune again" in sentence


def test_all_disturbances_are_described() -> None:
    assert len(describe(others=(3.0,), steal=0.5, throttled=100, drift=5.0)) == 4


def test_one_busy_reading_among_quiet_ones_is_not_described() -> None:
    assert describe(others=(0.0, 2.0, 0.1)) == ()


def test_a_larger_machine_may_have_more_load_of_others() -> None:
    assert describe(others=(1.0,), usable_cpus=64.0) == ()
    assert len(describe(others=(1.0,), usable_cpus=8.0)) == 1


def test_counters_that_cannot_be_read_are_ignored_and_the_drift_is_not() -> None:
    monitor = NoiseMonitor(2.0, lambda: None, skip_sleep)
    monitor.start()
    monitor.measure_others()
    assert monitor.describe([]) == ()
    assert len(monitor.describe(number_runs([100.0, 120.0]))) == 1


def test_a_reading_that_fails_in_its_second_half_is_ignored() -> None:
    monitor = NoiseMonitor(2.0, play(make_counters(), None, None), skip_sleep)
    monitor.measure_others()
    assert monitor.describe([]) == ()


def test_load_of_others_is_measured_after_the_children_have_ended() -> None:
    happened: list[object] = []
    read = play(make_counters(busy=10.0), make_counters(busy=10.1), None)
    monitor = NoiseMonitor(2.0, read, happened.append, stop_children=lambda: happened.append("stopped"))
    monitor.measure_others()
    assert happened == ["stopped", READING_SECONDS]
    assert "kept 0.5 CPUs busy" in monitor.describe([])[0]


def test_a_second_start_forgets_earlier_readings() -> None:
    busy = make_counters(busy=9.0)
    monitor = NoiseMonitor(2.0, play(make_counters(), make_counters(), busy, busy, busy), skip_sleep)
    monitor.start()
    monitor.measure_others()
    monitor.start()
    assert monitor.describe([]) == ()
