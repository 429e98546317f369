"""Decides how long a trial goes on: whole epochs where they are short, else a window and mini-epochs.

A long epoch is not run to its end. Its sampler is told to stop, the pipeline drains as it does at the end of
any epoch, and mini-epochs then show what starting over costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from autotune.protocol.measurement import EpochTrace, Measurement, StopReason
from autotune.protocol.messages import TrialRequest
from autotune.protocol.throughput import estimate, measure_steady, throughput_upper_bound

FIRST_EPOCH_SHARE: Final = 0.6  # of the trial's time, when there are later epochs to see as well
MIN_SNAPSHOT_INTERVAL_SECONDS: Final = 0.1
MAX_EPOCH_BATCHES: Final = 4096  # keeps the record small
ABANDON_FACTOR: Final = 2.0  # of the trial's time; then the queue is not even drained
ROUND_FACTOR: Final = 2.0  # of the seconds after which that was first so: until then the workers' round is waited for
MIN_LATER_EPOCHS: Final = 2
MAX_OVERTIME_RATIO: Final = 0.5  # of the trial's time, to see a third epoch: the second is often slower than the rest
UNLIMITED_BATCHES: Final = 1 << 62


def align_to_workers(batches: int, workers: int, epoch_batches: int | None) -> int:
    """Give the next number of batches, from `batches` on, that leaves the same rest of a round as a whole epoch."""
    return batches + ((epoch_batches or 0) - batches) % max(1, workers)


class StoppingRule:
    """Answers, batch after batch, whether the epoch and the trial go on; `epoch_batches` is None when not known."""

    def __init__(self, request: TrialRequest, epoch_batches: int | None) -> None:
        self.request = request
        self.epoch_batches = epoch_batches
        self._next_snapshot = MIN_SNAPSHOT_INTERVAL_SECONDS
        self._is_pruned = False
        self._knows_pace = False
        self._is_late_since = math.inf

    def should_stop_epoch(
        self, batches: int, snapshot: Callable[[], EpochTrace], *, is_first: bool, elapsed: float
    ) -> bool:
        """Decide, so many batches into the epoch and seconds into the trial, whether it should hand out no more.

        `snapshot` gives the epoch so far; it is called seldom, because that costs time.
        """
        if elapsed < self._next_snapshot and batches < MAX_EPOCH_BATCHES:
            return False
        self._next_snapshot = elapsed + MIN_SNAPSHOT_INTERVAL_SECONDS
        trace = snapshot()
        if is_first and self._is_too_slow(trace):
            self._is_pruned = True
            return True
        share = FIRST_EPOCH_SHARE if is_first and self.request.epochs > 1 else 1.0
        if batches >= MAX_EPOCH_BATCHES or elapsed > share * self.request.seconds:
            return True
        self._knows_pace = is_first and self._is_steady_precise(trace)
        return self._knows_pace

    def should_abandon(self, batches: int, elapsed: float) -> bool:
        """Decide whether to leave the queue undrained, so many batches into the epoch and seconds into the trial.

        Workers begin a round together, and where a batch takes seconds they end it together: an epoch left after the
        first batch of one would show the pace of a single worker, however many there are.
        """
        if elapsed <= ABANDON_FACTOR * self.request.seconds:
            return False
        self._is_late_since = min(self._is_late_since, elapsed)
        is_round_over = batches % max(1, self.request.config.dataloader.num_workers) == 0
        return is_round_over or elapsed > ROUND_FACTOR * self._is_late_since

    def next_epoch_batches(self, traces: Sequence[EpochTrace], elapsed: float) -> int | StopReason:
        """Give the most batches of the next epoch, or why the trial ends after these, so many seconds into it."""
        if self._is_pruned:
            return "pruned"
        if self.epoch_batches is None or len(traces) >= self.request.epochs:
            return self._name_end(traces[-1])
        measurement = Measurement(epochs=tuple(traces), epoch_batches=self.epoch_batches, stopped="time")
        ahead = estimate(measurement, self.request.config, self.request.epochs)
        if len(traces) > MIN_LATER_EPOCHS and ahead.is_precise(self.request.precision):
            return "precise"
        left = self.request.seconds - elapsed
        overtime = MAX_OVERTIME_RATIO * self.request.seconds
        if len(traces) > 1 and self._is_below_threshold(ahead.upper):
            return "pruned"
        if ahead.epoch_seconds <= left:
            return UNLIMITED_BATCHES
        if len(traces) > MIN_LATER_EPOCHS or left < -overtime:
            return "time"
        if ahead.epoch_seconds <= left + overtime and traces[-1].closed_after is None:
            return UNLIMITED_BATCHES
        return self._mini_epoch_batches() if len(traces) == 1 or left > 0 else "time"

    def _name_end(self, last: EpochTrace) -> StopReason:
        if last.closed_after is None:
            return "done"
        return "precise" if self._knows_pace else "time"

    def _mini_epoch_batches(self) -> int:
        loader = self.request.config.dataloader
        workers = max(1, loader.num_workers)
        shortest = workers * ((loader.prefetch_factor or 0) + 2) + 2
        return align_to_workers(shortest, workers, self.epoch_batches)

    def _is_below_threshold(self, samples_per_second: float) -> bool:
        floor = self.request.prune_below
        return floor is not None and samples_per_second < floor

    def _is_too_slow(self, trace: EpochTrace) -> bool:
        if self.request.prune_below is None:
            return False
        return self._is_below_threshold(throughput_upper_bound(trace, self.request.config, self.epoch_batches))

    def _is_steady_precise(self, trace: EpochTrace) -> bool:
        """Whether a long epoch's pace is known, so that its remaining batches would teach nothing."""
        batches_left = math.inf if self.epoch_batches is None else self.epoch_batches - trace.batches
        if batches_left < trace.batches:
            return False
        steady = measure_steady([trace], self.request.config)
        return steady.half_width is not None and steady.half_width <= self.request.precision * steady.batch_seconds
