from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.protocol.statistics import student_t
from autotune.protocol.throughput import (
    UNSEEN_SPREAD,
    UNSEEN_WEIGHT,
    estimate,
    measure_steady,
    steady_window,
    throughput_upper_bound,
)
from tests.builders import make_config, make_measurement, make_measurement_of, make_trace

PACE = 0.1


@given(
    workers=st.integers(1, 8),
    prefetch=st.integers(1, 4),
    queue_gap=st.floats(0, 1e-4),
    drain_gap=st.floats(0, 1e-4),
    rounds=st.integers(2, 20),
)
def test_the_batches_of_the_queue_never_count_as_steady(
    workers: int, prefetch: int, queue_gap: float, drain_gap: float, rounds: int
) -> None:
    queue, steady = workers * prefetch, workers * rounds
    trace = make_trace([queue_gap] * queue + [PACE] * steady + [drain_gap] * queue)
    config = make_config(workers, prefetch)
    window = steady_window(trace, config)
    assert window is not None
    assert window[0] == steady
    assert measure_steady([trace], config).batch_seconds == pytest.approx(PACE)


@given(workers=st.integers(1, 8), prefetch=st.integers(1, 4), rounds=st.integers(2, 20))
def test_what_drains_after_an_epoch_was_closed_never_counts_as_steady(workers: int, prefetch: int, rounds: int) -> None:
    queue = workers * prefetch
    closed = queue + workers * rounds
    trace = make_trace([0.0] * queue + [PACE] * (workers * rounds) + [0.0] * queue, closed_after=closed)
    assert measure_steady([trace], make_config(workers, prefetch)).batch_seconds == pytest.approx(PACE)


def test_batches_that_arrive_in_bursts_are_averaged_over_whole_rounds_of_workers() -> None:
    burst = [4 * PACE, 0.0, 0.0, 0.0]
    trace = make_trace([0.0] * 8 + burst * 5 + [4 * PACE], closed_after=29)
    assert measure_steady([trace], make_config(4, 2)).batch_seconds == pytest.approx(PACE)


def test_the_first_batch_is_not_steady_without_workers_either() -> None:
    trace = make_trace([5.0] + [PACE] * 9)
    assert measure_steady([trace], make_config(0)).batch_seconds == pytest.approx(PACE)


def test_epochs_shorter_than_the_queue_are_paced_by_everything_the_start_included() -> None:
    trace = make_trace([1.0, 0.1, 0.1], turnover_seconds=0.2)
    assert measure_steady([trace], make_config(8, 4)).batch_seconds == pytest.approx(1.4 / 3)


def test_of_an_epoch_that_was_cut_short_the_last_round_that_drained_in_part_is_no_pace() -> None:
    burst = [4.0, 0.0, 0.0, 0.0]
    config = make_config(4, 4)
    trace = make_trace([*burst, *burst, 4.0], closed_after=5)
    assert measure_steady([trace], config).batch_seconds == pytest.approx(1.0)
    found = estimate(make_measurement(trace, epoch_batches=41), config, epochs=1)
    assert found.epoch_seconds == pytest.approx(12.0 + 32 * 1.0)


def test_of_an_epoch_that_was_cut_short_within_its_first_round_everything_is_its_pace() -> None:
    trace = make_trace([2.0, 0.5], closed_after=1)
    assert measure_steady([trace], make_config(4, 4)).batch_seconds == pytest.approx(1.25)


def test_the_error_of_a_steady_pace_is_known_only_from_four_blocks_on() -> None:
    gaps = [0.1, 0.1, 0.2, 0.2] * 4
    assert measure_steady([make_trace(gaps[:4])], make_config(0)).half_width is None
    found = measure_steady([make_trace([1.0, *gaps])], make_config(0))
    assert found.half_width == pytest.approx(student_t(7) * 0.05 * math.sqrt(8 / 7) / math.sqrt(8))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_four_rounds_of_workers_are_four_blocks_and_one_batch_less_is_too_few(workers: int) -> None:
    batches = max(1, workers)  # of a round, and of the queue
    gaps = [PACE] * 2 * batches + [2 * PACE] * 3 * batches

    def half_width(closed_after: int) -> float | None:
        return measure_steady([make_trace(gaps, closed_after=closed_after)], make_config(workers, 1)).half_width

    assert half_width(5 * batches - 1) is None
    assert half_width(5 * batches) == pytest.approx(student_t(3) * PACE / 2 / math.sqrt(4))


def test_the_error_of_a_steady_pace_is_that_of_the_longest_epoch() -> None:
    calm, wild = [PACE] * 12, [PACE, 3 * PACE] * 4
    for gaps in ([2.0, *wild], [0.1, *wild]):
        found = measure_steady([make_trace([1.0, *calm]), make_trace(gaps)], make_config(0))
        assert found.half_width == pytest.approx(0.0)
        assert found.batch_seconds == pytest.approx((12 + 16) * PACE / 20)


def test_a_truncated_epoch_is_completed_at_its_steady_pace() -> None:
    trace = make_trace([PACE] * 10, closed_after=10)
    found = estimate(make_measurement(trace, epoch_batches=100), make_config(0), epochs=1)
    assert found.epoch_seconds == pytest.approx(100 * PACE)
    assert found.samples_per_second == pytest.approx(32 / PACE)


def test_a_full_queue_does_not_flatter_a_truncated_epoch() -> None:
    config = make_config(4, 4)
    trace = make_trace([1.0] + [0.0] * 15 + [PACE] * 20, closed_after=36)
    found = estimate(make_measurement(trace, epoch_batches=1000), config, epochs=1)
    assert found.samples_per_second == pytest.approx(1000 * 32 / (1.0 + 20 * PACE + 964 * PACE))


def test_the_first_epoch_counts_once_and_the_later_ones_for_all_others() -> None:
    cold, warm = make_trace([2.0] + [PACE] * 9), make_trace([PACE] * 10)
    found = estimate(make_measurement(cold, warm, warm, epoch_batches=10), make_config(0), epochs=5)
    assert found.epoch_seconds == pytest.approx(1.0)
    assert found.samples_per_second == pytest.approx(5 * 320 / (2.9 + 4 * 1.0))


@given(turnover=st.floats(0.01, 10), epochs=st.integers(1, 100))
def test_turning_over_between_epochs_lowers_the_score(turnover: float, epochs: int) -> None:
    def score(turnover_seconds: float) -> float:
        trace = make_trace([PACE] * 10, turnover_seconds)
        return estimate(make_measurement(trace, trace, epoch_batches=10), make_config(0), epochs).samples_per_second

    assert score(turnover) < score(0.0)
    assert score(turnover) == pytest.approx(320 / (1.0 + turnover))


def test_the_turn_over_seen_in_short_epochs_counts_for_the_real_number_of_epochs() -> None:
    long = make_trace([PACE] * 50, closed_after=50)
    mini = make_trace([1.0] + [PACE] * 5, closed_after=6)
    measurement = make_measurement(long, mini, epoch_batches=50)
    once = estimate(measurement, make_config(0), epochs=1).samples_per_second
    often = estimate(measurement, make_config(0), epochs=50).samples_per_second
    assert once == pytest.approx(1600 / 5.0)
    assert often == pytest.approx(50 * 1600 / (5.0 + 49 * (1.5 + 44 * PACE)))


def test_an_epoch_of_unknown_length_is_scored_by_its_steady_pace_alone() -> None:
    trace = make_trace([3.0] + [PACE] * 20, turnover_seconds=5.0, closed_after=21)
    found = estimate(make_measurement(trace, epoch_batches=None), make_config(0), epochs=10)
    assert found.samples_per_second == pytest.approx(32 / PACE)
    assert found.epoch_seconds == pytest.approx(PACE)
    assert found.relative_error == pytest.approx(0.0)


def test_the_error_of_a_pace_is_that_of_an_endless_run() -> None:
    trace = make_trace([3.0] + [PACE, 2 * PACE] * 4, closed_after=9, wait_seconds=1.05)
    config = make_config(0)
    steady = measure_steady([trace], config)
    found = estimate(make_measurement(trace, epoch_batches=None), config, epochs=10)
    assert steady.half_width is not None
    assert found.relative_error == pytest.approx(steady.half_width / (1.5 * PACE))
    assert found.wait_share == pytest.approx(1.05 / (3.0 + 12 * PACE))


def test_an_epoch_of_one_batch_is_paced_by_it() -> None:
    found = estimate(make_measurement(make_trace([PACE]), epoch_batches=None), make_config(0), epochs=1)
    assert found.samples_per_second == pytest.approx(32 / PACE)


def test_a_pace_without_an_error_makes_an_endless_run_infinitely_uncertain() -> None:
    trace = make_trace([PACE] * 2, closed_after=2)
    found = estimate(make_measurement(trace, epoch_batches=None), make_config(0), epochs=10)
    assert found.relative_error == math.inf


def test_the_share_of_waiting_is_taken_over_all_epochs() -> None:
    traces = (make_trace([PACE] * 10, wait_seconds=0.9), make_trace([PACE] * 30, wait_seconds=0.1))
    found = estimate(make_measurement(*traces, epoch_batches=30), make_config(0), epochs=3)
    assert found.wait_share == pytest.approx(1.0 / 4.0)


@pytest.mark.parametrize("epoch_batches", [10, None])
def test_nobody_waits_longer_than_the_run_took(epoch_batches: int | None) -> None:
    trace = make_trace([PACE] * 10, wait_seconds=1.5)
    found = estimate(make_measurement(trace, epoch_batches=epoch_batches), make_config(0), epochs=3)
    assert found.wait_share == 1.0


@given(rate=st.floats(0.1, 1e6), epochs=st.integers(1, 1000))
def test_a_steady_run_has_the_same_throughput_whatever_its_length(rate: float, epochs: int) -> None:
    assert estimate(make_measurement_of(rate), make_config(0), epochs).samples_per_second == pytest.approx(rate)


def test_more_equal_epochs_make_an_estimate_more_certain() -> None:
    trace = make_trace([PACE] * 10)
    errors = [
        estimate(make_measurement(*[trace] * count, epoch_batches=10), make_config(0), 10).relative_error
        for count in (2, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > errors[-1]


def test_epochs_to_come_share_the_error_of_the_mean_of_those_seen_and_vary_once_each_beside_it() -> None:
    trace = make_trace([PACE] * 10)
    found = estimate(make_measurement(*[trace] * 5, epoch_batches=10), make_config(0), epochs=10)
    settled, seen, ahead = 3, 5, 5
    spread = UNSEEN_SPREAD * math.sqrt(UNSEEN_WEIGHT / (UNSEEN_WEIGHT + settled - 1))  # of an epoch of one second
    variance = (seen + ahead) * spread**2 + (ahead * spread) ** 2 / settled
    assert found.relative_error == pytest.approx(student_t(UNSEEN_WEIGHT + settled - 1) * math.sqrt(variance) / 10)


@pytest.mark.parametrize("gaps", [[PACE, 2 * PACE] * 4, [1.5 * PACE] * 3])
def test_batches_that_were_not_run_add_the_error_of_their_pace(gaps: list[float]) -> None:
    """It is twice the spread that is assumed, where too few batches were seen to tell."""
    trace = make_trace([1.5 * PACE, *gaps], closed_after=1 + len(gaps))
    config = make_config(0)
    found = estimate(make_measurement(trace, trace, epoch_batches=100), config, epochs=2)
    half_width = measure_steady([trace], config).half_width or 2 * UNSEEN_SPREAD * 1.5 * PACE
    of_epochs = student_t(UNSEEN_WEIGHT) * math.sqrt(2) * UNSEEN_SPREAD * 100
    of_pace = 2 * (99 - len(gaps)) * half_width / (1.5 * PACE)
    assert found.relative_error == pytest.approx(math.hypot(of_epochs, of_pace) / 200)


def test_epochs_that_were_run_whole_have_no_error_of_a_pace() -> None:
    trace = make_trace([PACE, 2 * PACE] * 6)
    found = estimate(make_measurement(trace, epoch_batches=12), make_config(0), epochs=1)
    assert found.relative_error == pytest.approx(student_t(UNSEEN_WEIGHT) * UNSEEN_SPREAD)


def test_epochs_that_differ_make_an_estimate_less_certain() -> None:
    calm = [make_trace([PACE] * 10)] * 4
    wild = [make_trace([PACE * factor] * 10) for factor in (0.5, 1.5, 0.5, 1.5)]
    measured = [make_measurement(*traces, epoch_batches=10) for traces in (calm, wild)]
    calm_error, wild_error = (estimate(one, make_config(0), 10).relative_error for one in measured)
    assert wild_error > 3 * calm_error


def test_a_measurement_is_precise_exactly_up_to_its_own_error() -> None:
    measurement = make_measurement(*[make_trace([PACE] * 10)] * 4, epoch_batches=10)
    error = estimate(measurement, make_config(0), 10).relative_error
    assert estimate(measurement, make_config(0), 10).is_precise(error)
    assert not estimate(measurement, make_config(0), 10).is_precise(error * 0.99)


@given(
    gaps=st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=60),
    turnover=st.floats(0, 2),
    epochs=st.integers(1, 20),
    workers=st.sampled_from([0, 4]),
)
def test_a_whole_epoch_with_a_slow_start_never_scores_above_its_own_bound(
    gaps: list[float], turnover: float, epochs: int, workers: int
) -> None:
    trace = make_trace(sorted(gaps, reverse=True)[:1] + gaps, turnover)
    config = make_config(workers, 8)  # with workers, so short an epoch has no steady part
    measurement = make_measurement(trace, epoch_batches=trace.batches)
    bound = throughput_upper_bound(trace, config, trace.batches)
    assert bound >= estimate(measurement, config, epochs).samples_per_second * (1 - 1e-9)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_nothing_is_out_of_reach_after_fewer_than_three_batches(batches: int) -> None:
    assert throughput_upper_bound(make_trace([9.0] * batches), make_config(0), None) == math.inf


def test_after_three_batches_a_run_without_workers_has_a_bound() -> None:
    """One and a half times the error of the pace above it, which is not known so early."""
    bound = throughput_upper_bound(make_trace([9.0, PACE, PACE]), make_config(0), None)
    assert bound == pytest.approx(32 / (PACE * (1 - 1.5 * 2 * UNSEEN_SPREAD)))


def test_the_bound_of_a_pace_whose_error_is_known_is_one_and_a_half_times_that_error_above_it() -> None:
    trace = make_trace([9.0] + [PACE, 2 * PACE] * 4)
    steady = measure_steady([trace], make_config(0))
    assert steady.half_width is not None
    bound = throughput_upper_bound(trace, make_config(0), None)
    assert bound == pytest.approx(32 / (steady.batch_seconds - 1.5 * steady.half_width))


def test_the_bound_of_a_whole_epoch_without_a_steady_part_leaves_only_its_start_out() -> None:
    trace = make_trace([9.0, 1.0, 2.0, 3.0])
    assert throughput_upper_bound(trace, make_config(4, 4), epoch_batches=4) == pytest.approx(4 * 32 / 6.0)


def test_an_epoch_whose_queue_is_still_being_handed_out_has_no_bound() -> None:
    trace = make_trace([1.0] * 10, closed_after=10)
    assert throughput_upper_bound(trace, make_config(4, 4), 1000) == math.inf


def test_an_incomplete_last_batch_never_counts_as_a_full_one() -> None:
    trace = make_trace([PACE] * 3, closed_after=3, samples_per_batch=512)
    measurement = make_measurement(trace, epoch_batches=6).model_copy(update={"epoch_samples": 3000})
    found = estimate(measurement, make_config(0, batch_size=512), epochs=4)
    assert found.samples_per_second == pytest.approx(3000 / (6 * PACE))


def test_an_epoch_cut_short_that_ends_on_a_batch_as_short_as_a_whole_one_is_completed_with_full_ones() -> None:
    """Where a batch takes as long as it has samples, the throughput is that of its samples, whatever the last one's."""
    short = 440 / 512
    trace = make_trace([PACE] * 3 + [short * PACE], closed_after=3)
    trace = trace.model_copy(update={"samples": 3 * 512 + 440})
    measurement = make_measurement(trace, epoch_batches=6).model_copy(update={"epoch_samples": 3000})
    found = estimate(measurement, make_config(0, batch_size=512), epochs=1)
    assert found.samples_per_second == pytest.approx(512 / PACE)
