from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.protocol import throughput
from autotune.protocol.measurement import EpochTrace
from autotune.protocol.statistics import student_t
from autotune.protocol.throughput import BATCH_SPREAD, UNSEEN_SPREAD, UNSEEN_WEIGHT, estimate, measure_steady
from tests.builders import make_config, make_measurement, make_trace

PACE = 0.1
BURST = [4 * PACE, 0.0, 0.0, 0.0]
SWINGING = [PACE, 2 * PACE] * 4
HALF_WIDTH = student_t(7) * PACE / 2 / math.sqrt(7)  # of the mean of these
OF_SIX = student_t(2 + 5) * math.sqrt(2 / (2 + 5)) * BATCH_SPREAD * 1.5 * PACE / math.sqrt(6)  # equal ones


@given(workers=st.integers(1, 8), prefetch=st.integers(1, 4), rounds=st.integers(2, 20), gap=st.floats(0, 1e-4))
@pytest.mark.parametrize("closed", [False, True])
def test_prefetched_batches_are_not_steady(workers: int, prefetch: int, rounds: int, gap: float, closed: bool) -> None:
    queue, steady = workers * prefetch, workers * rounds
    closed_after = queue + steady if closed else None
    trace = make_trace([gap] * queue + [PACE] * steady + [gap] * queue, closed_after=closed_after)
    config = make_config(workers, prefetch)
    assert (throughput.steady_window(trace, config) or (0, ()))[0] == steady
    assert measure_steady([trace], config).batch_seconds == pytest.approx(PACE)


@pytest.mark.parametrize(
    ("gaps", "options", "workers", "seconds"),
    [
        pytest.param([0.0] * 16 + BURST * 5 + [4 * PACE], {"closed_after": 37}, 4, PACE, id="bursts"),
        pytest.param([5.0] + [PACE] * 9, {}, 0, PACE, id="first batch without workers"),
        pytest.param([1.0, 0.1, 0.1], {"turnover_seconds": 0.2}, 8, 1.4 / 3, id="epoch shorter than the queue"),
        pytest.param([*BURST, *BURST, 4 * PACE], {"closed_after": 5}, 4, PACE, id="last round drained in part"),
        pytest.param([2.0, 0.5], {"closed_after": 1}, 4, 1.25, id="closed within the first round"),
    ],
)
def test_whole_rounds_are_steady(gaps: list[float], options: dict[str, Any], workers: int, seconds: float) -> None:
    found = measure_steady([make_trace(gaps, **options)], make_config(workers, 4))
    assert found.batch_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_error_of_the_steady_rate_is_known_from_four_rounds_of_workers_on(workers: int) -> None:
    batches = max(1, workers)  # of a round, and of the queue
    gaps = [PACE] * 2 * batches + [2 * PACE] * 3 * batches
    few, enough = (
        measure_steady([make_trace(gaps, closed_after=closed)], make_config(workers, 1)).half_width
        for closed in (5 * batches - 1, 5 * batches)
    )
    assert few is None
    assert enough == pytest.approx(student_t(3) * PACE / 2 / math.sqrt(4))


def test_the_error_of_the_steady_rate_is_that_of_the_longest_epoch() -> None:
    calm, wild = [PACE] * 12, [PACE, 3 * PACE] * 4
    for gaps in ([2.0, *wild], [0.1, *wild]):
        found = measure_steady([make_trace([1.0, *calm]), make_trace(gaps)], make_config(0))
        assert found.half_width == pytest.approx(0.0)
        assert found.batch_seconds == pytest.approx((12 + 16) * PACE / 20)


LONG = make_trace([PACE] * 50, closed_after=50)
MINI = make_trace([1.0] + [PACE] * 5, closed_after=6)
COLD, WARM = make_trace([2.0] + [PACE] * 9), make_trace([PACE] * 10)
SLOW_END = make_trace([PACE] * 10, turnover_seconds=2.0)
QUEUE = make_trace([1.0] + [0.0] * 15 + [PACE] * 20, closed_after=36)
DRAINED = make_trace([*BURST, *BURST, 4 * PACE], closed_after=5)


@pytest.mark.parametrize(
    ("traces", "workers", "epoch_batches", "epochs", "run_seconds", "epoch_seconds"),
    [
        pytest.param([make_trace([PACE] * 10, closed_after=10)], 0, 100, 1, 10.0, 10.0, id="cut short"),
        pytest.param([QUEUE], 4, 1000, 1, 1.0 + 20 * PACE + 964 * PACE, 99.4, id="full queue"),
        pytest.param([DRAINED], 4, 41, 1, 12 * PACE + 32 * PACE, 4.4, id="drained in part"),
        pytest.param([COLD, WARM, WARM], 0, 10, 5, 2.9 + 4 * 1.0, 1.0, id="cold workers once"),
        pytest.param([SLOW_END, SLOW_END], 0, 10, 7, 7 * 3.0, 3.0, id="slow turn-over"),
        pytest.param([LONG, MINI], 0, 50, 1, 5.0, 1.5 + 44 * PACE, id="one epoch"),
        pytest.param([LONG, MINI], 0, 50, 50, 5.0 + 49 * (1.5 + 44 * PACE), 1.5 + 44 * PACE, id="turn-over"),
    ],
)
def test_a_run_is_composed_of_its_first_epoch_and_later_ones(
    traces: list[EpochTrace], workers: int, epoch_batches: int, epochs: int, run_seconds: float, epoch_seconds: float
) -> None:
    measurement = make_measurement(*traces, epoch_batches=epoch_batches)
    found = estimate(measurement, make_config(workers, 4), epochs)
    assert found.samples_per_second == pytest.approx(epochs * 32 * epoch_batches / run_seconds)
    assert found.epoch_seconds == pytest.approx(epoch_seconds)


@pytest.mark.parametrize(("workers", "persistent", "slow"), [(4, True, 2), (16, True, 4), (16, False, 2)])
def test_epochs_in_which_persistent_workers_load_their_first_batches_do_not_count_as_later_ones(
    workers: int, persistent: bool, slow: int
) -> None:
    traces = [make_trace([2 * PACE] * 10)] * slow + [make_trace([PACE] * 10)]
    config = make_config(workers, persistent_workers=persistent)
    found = estimate(make_measurement(*traces, epoch_batches=10), config, 10)
    assert found.epoch_seconds == pytest.approx(10 * PACE)


@pytest.mark.parametrize(
    ("gaps", "seconds", "error"),
    [
        ([3.0] + [PACE] * 20, PACE, 0.0),
        ([3.0, *SWINGING], 1.5 * PACE, HALF_WIDTH / (1.5 * PACE)),
        ([3.0, *[PACE, PACE, 2 * PACE, 2 * PACE] * 4], 1.5 * PACE, HALF_WIDTH / (1.5 * PACE)),  # eight blocks of two
        ([PACE], PACE, math.inf),
        ([PACE] * 2, PACE, math.inf),
    ],
)
def test_a_run_of_unknown_length_is_its_steady_state(gaps: list[float], seconds: float, error: float) -> None:
    trace = make_trace(gaps, closed_after=len(gaps), wait_seconds=0.05)
    found = estimate(make_measurement(trace, epoch_batches=None), make_config(0), epochs=10)
    assert found.samples_per_second == pytest.approx(32 / seconds)
    assert found.epoch_seconds == pytest.approx(seconds)
    assert found.relative_error == pytest.approx(error)
    assert found.wait_share == pytest.approx(0.05 / sum(gaps))


@pytest.mark.parametrize(
    ("waits", "epoch_batches", "share"),
    [((0.9, 0.1), 30, (1.4 + 0.1 + 0.1) / 9), ((0.9, 0.1), None, 0.25), ((3.0, 3.0), 30, 1.0), ((3.0, 3.0), None, 1.0)],
)
def test_the_wait_share_is_that_of_the_run_and_at_most_one(
    waits: tuple[float, float], epoch_batches: int | None, share: float
) -> None:
    traces = (make_trace([PACE] * 10, wait_seconds=waits[0]), make_trace([PACE] * 30, wait_seconds=waits[1]))
    measurement = make_measurement(*traces, epoch_batches=epoch_batches)
    assert estimate(measurement, make_config(0), epochs=3).wait_share == pytest.approx(share)


def test_the_start_of_workers_is_a_small_share_of_a_long_epoch() -> None:
    trace = make_trace([2.0, 0.0, *[PACE] * 20], closed_after=22, wait_seconds=2.2)
    trace = trace.model_copy(update={"batch_waits": (2.0, 0.0, *[PACE / 10] * 20)})
    found = estimate(make_measurement(trace, epoch_batches=1022), make_config(2, 2), epochs=1)
    assert found.wait_share == pytest.approx((2.2 + 1000 * PACE / 10) / (4.0 + 1000 * PACE))


@pytest.mark.parametrize(
    ("gaps", "workers", "samples"),
    [
        ([PACE, PACE / 32], 0, 33),
        ([PACE, PACE, PACE / 2], 0, 80),
        ([0.5, PACE, PACE / 2], 1, 80),
        ([PACE, PACE, PACE, PACE], 0, 4 * 32),
        ([0.5, 0.0, 2 * PACE, 0.0], 2, 3 * 32 + 1),
    ],
)
def test_a_shorter_last_batch_is_no_full_one(gaps: list[float], workers: int, samples: int) -> None:
    trace = make_trace(gaps, closed_after=len(gaps) - 1).model_copy(update={"samples": samples})
    assert measure_steady([trace], make_config(workers, 4)).batch_seconds == pytest.approx(PACE)


def test_the_wait_for_a_shorter_last_batch_is_not_that_of_others() -> None:
    trace = make_trace([PACE, PACE / 32], closed_after=1, wait_seconds=PACE)
    trace = trace.model_copy(update={"samples": 33, "batch_waits": (0.9 * PACE, 0.1 * PACE)})
    assert estimate(make_measurement(trace, epoch_batches=10), make_config(0), epochs=1).wait_share > 0.9


def test_rounds_in_which_workers_start_are_no_pace() -> None:
    first = make_trace([2.0, 0.0, 0.0, 0.0, *[PACE] * 8], closed_after=8)
    second = make_trace([2.0, 0.0, 0.0, 0.0], closed_after=1)
    assert measure_steady([first, second], make_config(4, 4)).batch_seconds == pytest.approx(PACE)
    assert measure_steady([second], make_config(4, 4)).batch_seconds == pytest.approx(2.0 / 4)


@pytest.mark.parametrize("seen", [2, 4, 5, 8])
def test_epochs_vary_once_each_and_those_ahead_share_the_error_of_the_mean(seen: int) -> None:
    found = estimate(make_measurement(*[WARM] * seen, epoch_batches=10), make_config(0), epochs=10)
    later, ahead = max(1, seen - 2), 10 - seen
    spread = UNSEEN_SPREAD * math.sqrt(UNSEEN_WEIGHT / (UNSEEN_WEIGHT + later - 1))  # of an epoch of one second
    variance = (seen + ahead) * spread**2 + (ahead * spread) ** 2 / later
    assert found.relative_error == pytest.approx(student_t(UNSEEN_WEIGHT + later - 1) * math.sqrt(variance) / 10)


@pytest.mark.parametrize(("gaps", "half_width"), [(SWINGING, HALF_WIDTH), ([1.5 * PACE] * 3, OF_SIX)])
def test_extrapolated_batches_add_the_error_of_the_steady_rate(gaps: list[float], half_width: float) -> None:
    """It is that of a mean, with a prior of the spread, if too few batches were measured."""
    trace = make_trace([1.5 * PACE, *gaps], closed_after=1 + len(gaps))
    found = estimate(make_measurement(trace, trace, epoch_batches=100), make_config(0), epochs=2)
    of_epochs = student_t(UNSEEN_WEIGHT) * math.sqrt(2) * UNSEEN_SPREAD * 100
    of_rate = 2 * (99 - len(gaps)) * half_width / (1.5 * PACE)
    assert found.relative_error == pytest.approx(math.hypot(of_epochs, of_rate) / 200)


@pytest.mark.parametrize(("gaps", "error"), [([3.0], 0.650), ([3.0, 3.0], 0.297), ([9.0, 3.0, 3.0], 0.297)])
def test_a_few_slow_batches_tell_little_of_a_run(gaps: list[float], error: float) -> None:
    trace = make_trace(gaps, closed_after=len(gaps))
    found = estimate(make_measurement(trace, epoch_batches=10_000), make_config(0), epochs=1)
    assert found.relative_error == pytest.approx(error, rel=0.01)


def test_epochs_that_differ_make_an_estimate_less_certain() -> None:
    wild = [make_trace([PACE * factor] * 10) for factor in (0.5, 1.5, 0.5, 1.5)]
    measured = [make_measurement(*traces, epoch_batches=10) for traces in ([WARM] * 4, wild)]
    calm_error, wild_error = (estimate(one, make_config(0), 10).relative_error for one in measured)
    assert wild_error > 3 * calm_error


GAPS = st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=60)


@given(gaps=GAPS, turnover=st.floats(0, 2), epochs=st.integers(1, 20), workers=st.sampled_from([0, 4]))
def test_a_whole_epoch_is_within_its_bound(gaps: list[float], turnover: float, epochs: int, workers: int) -> None:
    trace = make_trace(sorted(gaps, reverse=True)[:1] + gaps, turnover)
    config = make_config(workers, 8)  # with workers, so short an epoch has no steady state
    bound = throughput.throughput_upper_bound(trace, config, trace.batches)
    found = estimate(make_measurement(trace, epoch_batches=trace.batches), config, epochs)
    assert bound >= found.samples_per_second * (1 - 1e-9)


@pytest.mark.parametrize(
    ("gaps", "workers", "epoch_batches", "seconds"),
    [
        *(pytest.param([9.0] * batches, 0, None, 0.0, id=f"{batches} batches") for batches in range(3)),
        pytest.param([9.0, PACE, PACE], 0, None, PACE * (1 - 1.5 * 2 * UNSEEN_SPREAD), id="unknown error"),
        pytest.param([9.0, *SWINGING], 0, None, 1.5 * (PACE - HALF_WIDTH), id="known error"),
        pytest.param([9.0, 1.0, 2.0, 3.0], 4, 4, 6.0 / 4, id="whole epoch without its start"),
        pytest.param([1.0] * 10, 4, 1000, 0.0, id="queue not yet empty"),
    ],
)
def test_a_run_has_an_upper_bound(gaps: list[float], workers: int, epoch_batches: int | None, seconds: float) -> None:
    bound = throughput.throughput_upper_bound(make_trace(gaps), make_config(workers, 4), epoch_batches)
    assert bound == pytest.approx(32 / seconds if seconds else math.inf)


SHORT = 440 / 512


@pytest.mark.parametrize(("batches", "epochs", "rate"), [([1, 1, 1], 4, 3000 / 6), ([1, 1, 1, SHORT], 1, 512)])
def test_a_last_batch_that_is_smaller_is_not_repeated(batches: list[float], epochs: int, rate: float) -> None:
    trace = make_trace([PACE * share for share in batches], closed_after=3)
    trace = trace.model_copy(update={"samples": round(512 * sum(batches))})
    measurement = make_measurement(trace, epoch_batches=6).model_copy(update={"epoch_samples": 3000})
    found = estimate(measurement, make_config(0, batch_size=512), epochs)
    assert found.samples_per_second == pytest.approx(rate / PACE)
