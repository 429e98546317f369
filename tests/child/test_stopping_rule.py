from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.child.stopping_rule import (
    MAX_EPOCH_BATCHES,
    MIN_SNAPSHOT_INTERVAL_SECONDS,
    UNLIMITED_BATCHES,
    StoppingRule,
)
from autotune.config import LoaderConfig
from autotune.protocol.measurement import EpochTrace
from autotune.protocol.messages import TrialRequest
from tests.builders import make_config, make_trace

PACE = 0.01


def make_rule(epoch_batches: int | None = 10_000, config: LoaderConfig | None = None, **changes: Any) -> StoppingRule:
    usual: dict[str, Any] = {"config": config or make_config(0), "epochs": 10, "seconds": 3.0, "precision": 0.02}
    return StoppingRule(TrialRequest(**usual | changes), epoch_batches)


def seen(gaps: list[float]) -> Callable[[], EpochTrace]:
    return lambda: make_trace(gaps, closed_after=len(gaps))


def noisy(count: int) -> list[float]:
    """Gaps that differ by a factor of three and so teach their pace only slowly."""
    return [PACE * (1 + index * 7 % 5 / 2) for index in range(count)]


def never_snapshot() -> EpochTrace:
    raise AssertionError("the epoch so far was asked for, which costs time")


def test_the_statistics_are_computed_rarely() -> None:
    rule, interval = make_rule(), MIN_SNAPSHOT_INTERVAL_SECONDS
    assert not rule.should_stop_epoch(5, never_snapshot, is_first=True, elapsed=0.5 * interval)
    assert not rule.should_stop_epoch(20, seen(noisy(20)), is_first=True, elapsed=0.2)
    assert not rule.should_stop_epoch(21, never_snapshot, is_first=True, elapsed=0.2 + 0.9 * interval)


STEADY = [PACE, *[PACE * (1 + index % 2 * 1e-3) for index in range(60)]]


@pytest.mark.parametrize(
    ("request_", "gaps", "is_first", "elapsed", "stops"),
    [
        ({"precision": 0.0}, noisy(100), True, 1.7, False),  # the first epoch leaves time for later ones
        ({"precision": 0.0}, noisy(100), True, 1.9, True),
        ({"precision": 0.0, "epochs": 1}, noisy(100), True, 2.9, False),  # the only one may use all the time
        ({"precision": 0.0, "epochs": 1}, noisy(100), True, 3.1, True),
        ({}, STEADY, True, 0.7, True),  # its throughput is known
        ({}, noisy(61), True, 0.7, False),
        ({}, STEADY, False, 0.7, False),  # a later one shows how epochs vary
        ({}, STEADY, False, 4.4, False),  # and may end late
        ({}, STEADY, False, 4.6, True),
        ({"epoch_batches": 100}, STEADY, True, 0.7, False),  # more than half of it is over
        ({"prune_below": 100_000.0}, STEADY, True, 0.7, True),  # it cannot reach the best
        ({"prune_below": 0.95 * 32 / PACE, "precision": 0.0}, [PACE] * 61, True, 0.7, False),
        ({"precision": 0.0}, [PACE] * 61, True, 0.7, False),
    ],
)
def test_an_epoch_is_cut_short_when_its_time_is_up_or_the_rest_of_it_shows_nothing(
    request_: dict[str, Any], gaps: list[float], is_first: bool, elapsed: float, stops: bool
) -> None:
    rule = make_rule(**request_)
    assert rule.should_stop_epoch(len(gaps), seen(gaps), is_first=is_first, elapsed=elapsed) is stops


@pytest.mark.parametrize(
    ("epoch_batches", "seeks_end", "gaps", "elapsed", "stops"),
    [
        (None, True, noisy(100), 5.9, False),
        (None, True, noisy(100), 6.1, True),
        (None, True, STEADY, 3.0, False),  # its throughput is known, its end not
        (None, False, STEADY, 0.7, True),
        (10_000, True, noisy(100), 1.9, True),
    ],
)
def test_an_epoch_of_unknown_length_has_twice_the_time_to_show_its_end(
    epoch_batches: int | None, seeks_end: bool, gaps: list[float], elapsed: float, stops: bool
) -> None:
    rule = make_rule(epoch_batches, seeks_end=seeks_end)
    assert rule.should_stop_epoch(len(gaps), seen(gaps), is_first=True, elapsed=elapsed) is stops


def test_an_epoch_ends_before_its_record_grows_large() -> None:
    assert make_rule().should_stop_epoch(MAX_EPOCH_BATCHES, seen(noisy(50)), is_first=False, elapsed=0.01)


def test_a_trial_whose_first_epoch_cannot_reach_the_best_is_pruned() -> None:
    rule = make_rule(prune_below=100_000.0)
    assert rule.should_stop_epoch(61, seen([PACE] * 61), is_first=True, elapsed=0.7)
    assert rule.next_epoch_batches([make_trace([PACE] * 61, closed_after=61)], 0.7) == "pruned"


@pytest.mark.parametrize(
    ("workers", "moments"),
    [
        (0, [(60, 1.9, False), (61, 2.1, True)]),
        (4, [(1, 5.0, False), (3, 5.2, False), (4, 5.2, True)]),  # a round of workers has begun to arrive
        (4, [(1, 5.0, False), (2, 10.0, False), (2, 10.1, True)]),  # which takes too long
    ],
)
def test_long_after_the_time_is_up_the_queue_is_not_drained_beyond_a_round_of_workers(
    workers: int, moments: list[tuple[int, float, bool]]
) -> None:
    rule = make_rule(config=make_config(workers), seconds=1.0)
    assert [rule.should_abandon(batches, elapsed) for batches, elapsed, _ in moments] == [one[2] for one in moments]


WHOLE = make_trace([PACE] * 10)
CUT = make_trace(noisy(150), closed_after=150)
LONG = make_trace(noisy(180), closed_after=180)
MINI = make_trace([PACE * 20, PACE, PACE, PACE], closed_after=4)
SHORT: dict[str, Any] = {"epoch_batches": 10, "precision": 0.0}


@pytest.mark.parametrize(
    ("request_", "traces", "elapsed", "plan"),
    [
        ({"epoch_batches": 10, "epochs": 2}, [WHOLE] * 2, 0.2, "done"),
        ({"epoch_batches": None}, [WHOLE], 0.1, "done"),  # one epoch of unknown length is enough
        ({"epoch_batches": None}, [CUT], 3.1, "time"),
        (SHORT | {"precision": 0.05}, [WHOLE], 0.1, UNLIMITED_BATCHES),
        (SHORT | {"precision": 0.05}, [WHOLE] * 2, 0.2, UNLIMITED_BATCHES),
        (SHORT | {"precision": 0.05}, [WHOLE] * 8, 0.8, "precise"),
        (SHORT | {"precision": 1.0}, [WHOLE] * 2, 0.2, UNLIMITED_BATCHES),  # two epochs are never enough
        (SHORT | {"prune_below": 10 * 32 / PACE}, [WHOLE] * 2, 0.2, "pruned"),  # the whole interval is below the best
        (SHORT | {"prune_below": 32 / PACE}, [WHOLE] * 2, 0.2, UNLIMITED_BATCHES),
        ({}, [LONG], 4.6, "time"),  # far over its time after the first epoch
        ({"precision": 0.0}, [CUT, MINI], 3.1, "time"),  # no further epoch fits
        ({"precision": 0.0}, [CUT, MINI, MINI], 2.5, "time"),
    ],
)
def test_a_trial_continues_with_whole_epochs_until_its_throughput_is_known_or_its_time_is_up(
    request_: dict[str, Any], traces: list[EpochTrace], elapsed: float, plan: int | str
) -> None:
    assert make_rule(**request_).next_epoch_batches(traces, elapsed) == plan


def test_a_trial_of_more_workers_than_batches_continues_until_each_worker_has_loaded_two() -> None:
    rule = make_rule(**SHORT, config=make_config(16, persistent_workers=True))
    plans = [rule.next_epoch_batches([WHOLE] * epochs, 3.1) for epochs in (3, 4, 5)]
    assert plans == [UNLIMITED_BATCHES, UNLIMITED_BATCHES, "time"]


@pytest.mark.parametrize("elapsed", [1.9, 3.1])
def test_mini_epochs_show_the_start_of_an_epoch_if_a_whole_one_does_not_fit(elapsed: float) -> None:
    plan = make_rule(epoch_batches=10_000, config=make_config(4, 2)).next_epoch_batches([LONG], elapsed)
    assert isinstance(plan, int)
    assert 4 * 2 < plan < 40  # longer than the queue, far shorter than an epoch
