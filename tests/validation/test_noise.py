"""Disturbances of the machine during the validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from autotune.validation.noise import READING_SECONDS, NoiseMonitor, measure_drift
from tests.builders import make_counters


def number_runs(*rates: Sequence[float]) -> list[Mapping[int, float]]:
    return [dict(enumerate(of_config, start=1)) for of_config in rates]


@pytest.mark.parametrize(
    ("rates", "drift"),
    [
        (number_runs([100.0, 100.0, 80.0], [10.0, 10.0, 8.0]), 0.25),
        (number_runs([100.0, 110.0], [110.0, 100.0]), 0.0),
        (number_runs([100.0, 120.0], [50.0], [7.0]), 0.2),
        (number_runs(), 0.0),
        (number_runs([], [100.0], [7.0]), 0.0),
    ],
    ids=["shared", "opposite", "measured once", "nothing", "one run"],
)
def test_drift_is_the_change_that_all_configurations_of_a_run_share(
    rates: list[Mapping[int, float]], drift: float
) -> None:
    assert measure_drift(rates) == pytest.approx(drift, abs=1e-9)


def describe(
    others: Sequence[float] = (0.0,), usable_cpus: float = 2.0, steal: float = 0.0, throttled: int = 0, drift: float = 0
) -> tuple[str, ...]:
    """Describe a validation with these disturbances; others are CPUs, one reading each."""
    start = make_counters(quotas=[(0, 0)])
    end = make_counters(total=100.0, steal=100.0 * steal, quotas=[(100, throttled)])
    pairs = [(start, make_counters(busy=cpus * READING_SECONDS, quotas=[(0, 0)])) for cpus in others]
    readings = iter([*(reading for pair in pairs for reading in pair), end])
    monitor = NoiseMonitor(usable_cpus, lambda: next(readings), lambda seconds: None)
    for _ in others:
        monitor.measure_others()
    return tuple(monitor.describe(number_runs([100.0, 100.0 * (1 + drift)])))


def test_a_quiet_machine_is_not_described() -> None:
    assert describe() == describe(others=(0.0, 2.0, 0.1)) == ()
    assert describe(others=(0.15,), usable_cpus=1.0, steal=0.03, throttled=10, drift=0.079) == ()


@pytest.mark.parametrize(
    ("disturbance", "words"),
    [
        ({"others": (0.7,)}, "Other processes used 70% of a CPU during the validation (limit 15%; usable CPUs: 2)"),
        ({"steal": 0.034}, "3.4% of the CPU time to other virtual machines during the validation (limit 3%)"),
        ({"throttled": 42}, "used up in 42.0% of its periods during the validation (limit 10%), as expected"),
        ({"drift": 0.12}, "speed of the machine changed by 12.0% between runs (limit 8%)"),
        ({"drift": 20.8}, "speed of the machine changed by a factor of 21.8 between runs (limit 8%)"),
    ],
)
def test_each_disturbance_has_a_sentence_with_its_number_limit_and_next_step(
    disturbance: dict[str, float], words: str
) -> None:
    (sentence,) = describe(**disturbance)  # type: ignore[arg-type]  # a keyword of any type
    assert words in sentence
    assert "tune again" in sentence


def test_a_larger_machine_may_have_more_load_of_others() -> None:
    assert describe(others=(1.0,), usable_cpus=64.0) == ()
    assert len(describe(others=(1.0,), usable_cpus=8.0)) == 1


def test_load_of_others_is_measured_after_the_children_have_ended() -> None:
    happened: list[object] = []
    readings = iter([make_counters(busy=10.0), make_counters(busy=10.1), make_counters()])
    monitor = NoiseMonitor(
        2.0, lambda: next(readings), happened.append, stop_children=lambda: happened.append("stopped")
    )
    monitor.measure_others()
    assert happened == ["stopped", READING_SECONDS]
    assert "used 50% of a CPU" in next(monitor.describe([]))


def test_a_validation_stopped_during_the_first_reading_has_nothing_to_describe() -> None:
    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    monitor = NoiseMonitor(2.0, make_counters, stop)
    with pytest.raises(KeyboardInterrupt):
        monitor.measure_others()
    assert list(monitor.describe([])) == []
