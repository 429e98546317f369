from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.system.cpu_load import CpuCounters
from autotune.validation.interference import (
    READING_SECONDS,
    Interference,
    InterferenceMonitor,
    describe_interference,
    measure_drift,
)
from tests.builders import make_counters

RATES = st.lists(st.lists(st.floats(1e-3, 1e6), max_size=6), max_size=6)


def play(*readings: CpuCounters | None) -> Callable[[], CpuCounters | None]:
    """Build a reader that gives these readings one after another."""
    rest = iter(readings)
    return lambda: next(rest)


def be_still(seconds: float) -> None:
    """Sleep for no time at all."""


def test_a_round_in_which_all_are_slower_is_drift() -> None:
    assert measure_drift([[100.0, 100.0, 80.0], [10.0, 10.0, 8.0]]) == pytest.approx(0.25)


def test_scatter_in_opposite_directions_is_no_drift() -> None:
    assert measure_drift([[100.0, 110.0], [110.0, 100.0]]) == pytest.approx(0, abs=1e-9)


def test_the_drift_of_a_single_contestant_is_its_own_scatter() -> None:
    assert measure_drift([[100.0, 112.0, 105.0]]) == pytest.approx(0.12)


@pytest.mark.parametrize("rounds", [[], [[]], [[100.0]], [[100.0], [7.0], []]])
def test_fewer_than_two_rounds_do_not_drift(rounds: list[list[float]]) -> None:
    assert measure_drift(rounds) == 0


def test_a_contestant_measured_once_does_not_hide_what_the_others_saw() -> None:
    assert measure_drift([[100.0, 120.0], [50.0], [7.0]]) == pytest.approx(0.2)


def test_a_contestant_dropped_after_two_rounds_counts_in_these_only() -> None:
    assert measure_drift([[100.0, 100.0, 150.0], [10.0, 10.0]]) > measure_drift([[100.0, 100.0, 100.0], [10.0, 10.0]])
    assert measure_drift([[100.0, 100.0, 100.0], [10.0, 10.0]]) == pytest.approx(0, abs=1e-9)


def test_a_round_that_a_contestant_missed_does_not_shift_its_later_ones() -> None:
    assert measure_drift([[100.0, 100.0, 120.0], [10.0, 0.0, 12.0]]) == pytest.approx(0.2, abs=0.03)
    assert measure_drift([[0.0, math.nan, math.inf], [-1.0]]) == 0


@given(rounds=RATES)
def test_drift_is_never_negative(rounds: list[list[float]]) -> None:
    assert measure_drift(rounds) >= 0


@given(rounds=RATES, factors=st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=6))
def test_drift_does_not_depend_on_how_fast_each_contestant_is(rounds: list[list[float]], factors: list[float]) -> None:
    scaled = [[rate * factor for rate in rates] for rates, factor in zip(rounds, factors, strict=False)]
    assert measure_drift(scaled) == pytest.approx(measure_drift(rounds), rel=1e-6, abs=1e-9)


@given(rates=st.lists(st.floats(1e-3, 1e6), max_size=6), lengths=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_contestants_that_keep_their_pace_do_not_drift(rates: list[float], lengths: list[int]) -> None:
    rounds = [[rate] * length for rate, length in zip(rates, lengths, strict=False)]
    assert measure_drift(rounds) == pytest.approx(0, abs=1e-9)


@given(paces=st.lists(st.floats(0.1, 10), min_size=2, max_size=5), rates=st.lists(st.floats(1, 1e4), min_size=1))
def test_drift_that_all_share_is_found_exactly(paces: list[float], rates: list[float]) -> None:
    rounds = [[rate * pace for pace in paces] for rate in rates]
    assert measure_drift(rounds) == pytest.approx(max(paces) / min(paces) - 1, rel=1e-6, abs=1e-9)


@given(rounds=st.lists(st.lists(st.floats(), max_size=4), max_size=4))
def test_no_rates_however_absurd_break_the_drift(rounds: list[list[float]]) -> None:
    assert 0 <= measure_drift(rounds) < math.inf


def test_nothing_is_said_of_a_quiet_machine() -> None:
    assert describe_interference(Interference(), 4.0) == ()
    edge = Interference(others_cpus=(0.15,), steal_share=0.03, throttled_share=0.1, drift=0.08)
    assert describe_interference(edge, 1.0) == ()


def test_others_are_described_in_cpus_against_the_limit() -> None:
    (sentence,) = describe_interference(Interference(others_cpus=(0.7,)), 2.0)
    assert sentence.startswith("Other processes kept 0.7 CPUs busy during the confirmation")
    assert "(limit 0.15 where 2 are usable)" in sentence
    assert "stop them and tune again" in sentence


def test_one_busy_moment_among_quiet_ones_is_not_described() -> None:
    assert describe_interference(Interference(others_cpus=(0.0, 2.0, 0.1)), 2.0) == ()


def test_a_larger_machine_may_have_more_going_on() -> None:
    busy = Interference(others_cpus=(1.0,))
    assert describe_interference(busy, 64.0) == ()
    assert len(describe_interference(busy, 8.0)) == 1


@pytest.mark.parametrize(
    ("quietness", "seen"),
    [
        (Interference(steal_share=0.034), "3.4 % of the CPU time to other virtual machines"),
        (Interference(throttled_share=0.42), "used up in 42.0 % of its periods"),
        (Interference(drift=0.12), "became 12.0 % slower or faster between rounds (limit 8 %)"),
    ],
)
def test_each_disturbance_is_described_with_its_number_limit_and_next_step(quietness: Interference, seen: str) -> None:
    (sentence,) = describe_interference(quietness, 2.0)
    assert seen in sentence
    assert "(limit " in sentence
    assert "tune again" in sentence


def test_every_disturbance_has_a_sentence_of_its_own() -> None:
    assert (
        len(describe_interference(Interference(others_cpus=(3.0,), steal_share=1, throttled_share=1, drift=5), 2.0))
        == 4
    )


def test_a_used_up_quota_is_called_expected_where_workers_saturate_it() -> None:
    (sentence,) = describe_interference(Interference(throttled_share=0.5), 2.0)
    assert "this is expected where workers saturate the quota" in sentence


def test_a_watch_sums_up_what_happened_between_start_and_finish() -> None:
    read = play(
        make_counters(busy=10.0, total=100.0, steal=1.0, quotas=[(100, 10)]),  # start
        make_counters(busy=20.0),  # between the first two rounds
        make_counters(busy=20.1),
        make_counters(busy=30.0),  # between the next two
        make_counters(busy=30.2),
        make_counters(busy=40.0, total=200.0, steal=6.0, quotas=[(200, 30)]),  # finish
    )
    watch = InterferenceMonitor(2.0, read, be_still)
    watch.start()
    watch.measure_others()
    watch.measure_others()
    quietness = watch.finish([[100.0, 110.0]])
    assert quietness.others_cpus == pytest.approx((0.5, 1.0))
    assert quietness.steal_share == pytest.approx(0.05)
    assert quietness.throttled_share == pytest.approx(0.2)
    assert quietness.drift == pytest.approx(0.1)


def test_a_watch_over_a_machine_that_cannot_be_read_sees_quiet_and_the_drift() -> None:
    watch = InterferenceMonitor(2.0, lambda: None, be_still)
    watch.start()
    watch.measure_others()
    assert watch.finish([]) == Interference()
    assert watch.finish([[100.0, 110.0]]).drift == pytest.approx(0.1)


def test_others_are_unknown_where_the_counters_can_no_longer_be_read() -> None:
    watch = InterferenceMonitor(2.0, play(make_counters(), None, None), be_still)
    watch.measure_others()
    assert watch.finish([]).others_cpus == ()


def test_others_are_measured_after_what_is_ours_has_ended_and_over_the_time_slept() -> None:
    happened: list[object] = []
    read = play(make_counters(busy=10.0), make_counters(busy=10.1), None)
    watch = InterferenceMonitor(2.0, read, happened.append, settle=lambda: happened.append("settled"))
    watch.measure_others()
    assert happened == ["settled", READING_SECONDS]
    assert watch.finish([]).others_cpus == pytest.approx((0.1 / READING_SECONDS,))


def test_a_watch_that_was_never_started_sees_nothing() -> None:
    assert InterferenceMonitor(2.0, play(make_counters(total=5.0, steal=5.0)), be_still).finish([]) == Interference()


def test_a_watch_started_again_forgets_what_it_saw() -> None:
    watch = InterferenceMonitor(
        2.0, play(make_counters(), make_counters(), make_counters(busy=9.0), make_counters(), make_counters()), be_still
    )
    watch.start()
    watch.measure_others()
    watch.start()
    assert watch.finish([]).others_cpus == ()
