from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.profiles.batch_waits import BatchWaits
from autotune.trial.measurement import EpochTrace
from autotune.validation.waits import sum_up_waits
from tests.builders import make_trace


def make_waiting(*waits: float) -> EpochTrace:
    return make_trace([1.0] * len(waits)).model_copy(update={"batch_waits": waits})


def sum_up(*waits: float) -> BatchWaits:
    found = sum_up_waits([make_waiting(9.0, *waits)])  # the first one is that for the workers
    assert found is not None
    return found


def test_percentiles_leave_out_the_start_of_workers() -> None:
    found = sum_up(*(0.01 * number for number in range(101)))
    assert (round(found.p50, 3), round(found.p95, 3), round(found.p99, 3)) == (0.5, 0.95, 0.99)


def test_bursts_of_as_many_batches_as_workers_are_told_with_the_pause_between_them() -> None:
    found = sum_up(*([2.1, 0.0, 0.001, 0.0] * 10))
    words = found.describe_rhythm(wait_share=0.68)
    assert words is not None
    assert words.startswith("Batches come 4 at once, then nothing for 2.1 s: loading is 3.1 times too slow")


def test_batches_that_are_each_waited_for_are_no_bursts() -> None:
    assert sum_up(*([0.1, 0.12, 0.09] * 10)).describe_rhythm(0.8) is None


def test_one_slow_batch_among_many_is_a_tail_and_no_rhythm_that_the_run_waits_for() -> None:
    found = sum_up(*([0.0] * 60), 3.0)
    assert found.p50 == 0.0 < found.p99
    assert found.describe_rhythm(wait_share=0.05) is None


def test_a_few_batches_say_nothing() -> None:
    assert sum_up_waits([make_waiting(*[0.1] * 10)]) is None


@given(st.lists(st.floats(0, 1e6), min_size=30, max_size=200), st.floats(0, 1))
def test_any_waits_can_be_summed_up(waits: list[float], fraction: float) -> None:
    found = sum_up(*waits)
    assert found.p50 <= found.p95 <= found.p99
    assert 0 <= found.pause_share <= 1
    found.describe_rhythm(fraction)
