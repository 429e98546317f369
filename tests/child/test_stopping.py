from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.child.stopping import MAX_EPOCH_BATCHES, MIN_SNAPSHOT_INTERVAL_SECONDS, UNLIMITED_BATCHES, StoppingRule
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


def test_the_statistics_are_looked_at_seldom() -> None:
    rule, interval = make_rule(), MIN_SNAPSHOT_INTERVAL_SECONDS
    assert not rule.should_stop_epoch(5, never_snapshot, is_first=True, elapsed=0.5 * interval)
    assert not rule.should_stop_epoch(20, seen(noisy(20)), is_first=True, elapsed=0.2)
    assert not rule.should_stop_epoch(
        21, never_snapshot, is_first=True, elapsed=0.2 + 0.9 * MIN_SNAPSHOT_INTERVAL_SECONDS
    )


def test_the_first_epoch_leaves_time_for_later_ones() -> None:
    gaps = noisy(100)
    assert not make_rule(precision=0.0).should_stop_epoch(100, seen(gaps), is_first=True, elapsed=1.7)
    assert make_rule(precision=0.0).should_stop_epoch(100, seen(gaps), is_first=True, elapsed=1.9)


def test_the_only_epoch_may_use_all_the_time() -> None:
    gaps = noisy(100)
    assert not make_rule(precision=0.0, epochs=1).should_stop_epoch(100, seen(gaps), is_first=True, elapsed=2.9)
    assert make_rule(precision=0.0, epochs=1).should_stop_epoch(100, seen(gaps), is_first=True, elapsed=3.1)


def test_an_epoch_ends_before_its_record_grows_large() -> None:
    assert make_rule().should_stop_epoch(MAX_EPOCH_BATCHES, seen(noisy(50)), is_first=False, elapsed=0.01)


def test_a_long_epoch_ends_once_its_pace_is_known() -> None:
    steady = [PACE, *[PACE * (1 + index % 2 * 1e-3) for index in range(60)]]
    assert make_rule().should_stop_epoch(61, seen(steady), is_first=True, elapsed=0.7)
    assert not make_rule().should_stop_epoch(61, seen(noisy(61)), is_first=True, elapsed=0.7)


def test_an_epoch_that_is_half_over_is_seen_to_its_end_even_when_its_pace_is_known() -> None:
    steady = [PACE, *[PACE * (1 + index % 2 * 1e-3) for index in range(60)]]
    assert not make_rule(epoch_batches=100).should_stop_epoch(61, seen(steady), is_first=True, elapsed=0.7)


def test_a_later_epoch_is_not_cut_short_because_its_pace_is_known() -> None:
    steady = [PACE] * 61
    assert not make_rule().should_stop_epoch(61, seen(steady), is_first=False, elapsed=0.7)


def test_a_first_epoch_that_cannot_reach_the_best_ends_the_trial_as_pruned() -> None:
    rule = make_rule(prune_below=100_000.0)
    assert rule.should_stop_epoch(61, seen([PACE] * 61), is_first=True, elapsed=0.7)
    assert rule.next_epoch_batches([make_trace([PACE] * 61, closed_after=61)], 0.7) == "pruned"


def test_an_epoch_within_reach_of_the_best_is_not_pruned() -> None:
    rule = make_rule(prune_below=0.95 * 32 / PACE, precision=0.0)
    assert not rule.should_stop_epoch(61, seen([PACE] * 61), is_first=True, elapsed=0.7)


def test_nothing_is_pruned_without_a_threshold() -> None:
    assert not make_rule(precision=0.0).should_stop_epoch(61, seen([PACE] * 61), is_first=True, elapsed=0.7)


def test_the_queue_is_not_even_drained_long_after_the_time_is_up() -> None:
    rule = make_rule(seconds=3.0)
    assert not rule.should_abandon(60, 5.9)
    assert rule.should_abandon(61, 6.1)


def test_a_round_of_workers_that_has_begun_to_arrive_is_waited_for() -> None:
    rule = make_rule(config=make_config(4), seconds=1.0)
    assert not rule.should_abandon(1, 5.0)
    assert not rule.should_abandon(3, 5.2)
    assert rule.should_abandon(4, 5.2)


def test_a_round_that_takes_twice_as_long_as_was_too_long_is_not_waited_for() -> None:
    rule = make_rule(config=make_config(4), seconds=1.0)
    assert not rule.should_abandon(1, 5.0)
    assert not rule.should_abandon(2, 10.0)
    assert rule.should_abandon(2, 10.1)


def test_a_run_that_was_seen_whole_is_done() -> None:
    traces = [make_trace([PACE] * 10)] * 2
    assert make_rule(epoch_batches=10, epochs=2).next_epoch_batches(traces, 0.2) == "done"


def test_data_of_unknown_length_is_looked_at_once() -> None:
    whole = make_trace([PACE] * 10)
    cut = make_trace([PACE] * 10, closed_after=10)
    assert make_rule(epoch_batches=None).next_epoch_batches([whole], 0.1) == "done"
    assert make_rule(epoch_batches=None).next_epoch_batches([cut], 3.1) == "time"


def test_short_epochs_are_run_whole_until_the_throughput_is_known() -> None:
    rule = make_rule(epoch_batches=10, precision=0.05)
    epoch = make_trace([PACE] * 10)
    assert rule.next_epoch_batches([epoch], 0.1) == UNLIMITED_BATCHES
    assert rule.next_epoch_batches([epoch] * 2, 0.2) == UNLIMITED_BATCHES
    assert rule.next_epoch_batches([epoch] * 8, 0.8) == "precise"


def test_two_epochs_are_never_enough_however_equal_they_are() -> None:
    epoch = make_trace([PACE] * 10)
    assert make_rule(epoch_batches=10, precision=1.0).next_epoch_batches([epoch] * 2, 0.2) == UNLIMITED_BATCHES


def test_mini_epochs_show_what_starting_over_costs_where_a_whole_epoch_does_not_fit() -> None:
    config = make_config(4, 2)
    rule = make_rule(epoch_batches=10_000, config=config)
    plan = rule.next_epoch_batches([make_trace(noisy(180), closed_after=180)], 1.9)
    assert isinstance(plan, int)
    assert 4 * 2 < plan < 40  # longer than the queue, far shorter than an epoch


def test_a_turn_over_is_seen_even_when_the_first_epoch_took_all_the_time() -> None:
    plan = make_rule().next_epoch_batches([make_trace(noisy(180), closed_after=180)], 3.1)
    assert isinstance(plan, int)


def test_a_trial_that_is_far_over_its_time_ends_after_its_first_epoch() -> None:
    assert make_rule(seconds=3.0).next_epoch_batches([make_trace(noisy(180), closed_after=180)], 4.6) == "time"


@pytest.mark.parametrize(("epochs", "elapsed"), [(2, 3.1), (3, 2.5)])
def test_the_trial_ends_when_no_further_epoch_fits(epochs: int, elapsed: float) -> None:
    first = make_trace(noisy(150), closed_after=150)
    mini = make_trace([PACE * 20, PACE, PACE, PACE], closed_after=4)
    rule = make_rule(precision=0.0)
    assert rule.next_epoch_batches([first, *[mini] * (epochs - 1)], elapsed) == "time"


def test_a_trial_whose_whole_interval_lies_below_the_best_is_pruned() -> None:
    epoch = make_trace([PACE] * 10)
    rule = make_rule(epoch_batches=10, prune_below=10 * 32 / PACE, precision=0.0)
    assert rule.next_epoch_batches([epoch] * 2, 0.2) == "pruned"
    assert (
        make_rule(epoch_batches=10, prune_below=32 / PACE, precision=0.0).next_epoch_batches([epoch] * 2, 0.2)
        == UNLIMITED_BATCHES
    )
