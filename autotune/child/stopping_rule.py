"""Decides when a trial ends: after whole epochs if they are short, else after a window and mini-epochs.

A long epoch is cut short: its sampler stops, and the pipeline drains as at the end of any epoch. Mini-epochs then show
the cost of starting an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from autotune.protocol.measurement import EpochTrace, Measurement, StopReason
from autotune.protocol.messages import TrialRequest
from autotune.protocol.throughput import count_slow_epochs, estimate, measure_steady, throughput_upper_bound

FIRST_EPOCH_SHARE: Final = 0.6  # of the trial's time, if later epochs follow
UNKNOWN_LENGTH_FACTOR: Final = 2.0  # times the trial's time, for an epoch whose end is sought
MIN_SNAPSHOT_INTERVAL_SECONDS: Final = 0.1
MAX_EPOCH_BATCHES: Final = 4096  # keeps the record small
ABANDON_FACTOR: Final = 2.0  # of the trial's time; then the queue is not even drained
ROUND_FACTOR: Final = 2.0  # of that time: until then the trial waits for the workers' round
MAX_OVERTIME_RATIO: Final = 0.5  # of the trial's time, for an epoch after those that are slow
UNLIMITED_BATCHES: Final = 1 << 62


def align_to_workers(batches: int, workers: int, epoch_batches: int | None) -> int:
    """Return the next number of batches that fills the last round of workers as a whole epoch does."""
    return batches + ((epoch_batches or 0) - batches) % max(1, workers)


class StoppingRule:
    """Decides after each batch whether the epoch and the trial continue; `epoch_batches` is None if unknown."""

    def __init__(self, request: TrialRequest, epoch_batches: int | None) -> None:
        self.request, self.epoch_batches = request, epoch_batches
        self._workers = max(1, request.config.dataloader.num_workers)
        self._seeks_end = request.seeks_end and epoch_batches is None
        self._seconds = request.seconds * (UNKNOWN_LENGTH_FACTOR if self._seeks_end else 1.0)
        self._floor = request.prune_below or 0.0  # in samples per second
        self._next_snapshot = MIN_SNAPSHOT_INTERVAL_SECONDS
        self._is_pruned = False
        self._knows_pace = False
        self._is_late_since = math.inf

    def should_stop_epoch(
        self, batches: int, snapshot: Callable[[], EpochTrace], *, is_first: bool, elapsed: float
    ) -> bool:
        """Return whether the sampler should stop, so many batches into the epoch and seconds into the trial.

        `snapshot` returns the epoch so far; it takes time and is called rarely.
        """
        if elapsed < self._next_snapshot and batches < MAX_EPOCH_BATCHES:
            return False
        self._next_snapshot = elapsed + MIN_SNAPSHOT_INTERVAL_SECONDS
        trace = snapshot()
        bound = throughput_upper_bound(trace, self.request.config, self.epoch_batches)
        if is_first and bound < self._floor:
            self._is_pruned = True
            return True
        share = 1.0 if is_first else 1.0 + MAX_OVERTIME_RATIO
        if is_first and self.request.epochs > 1 and not self._seeks_end:
            share = FIRST_EPOCH_SHARE
        if batches >= MAX_EPOCH_BATCHES or elapsed > share * self._seconds:
            return True
        batches_left = math.inf if self.epoch_batches is None else self.epoch_batches - trace.batches
        if not is_first or batches_left < trace.batches or self._seeks_end:
            return False
        steady = measure_steady([trace], self.request.config)
        limit = self.request.precision * steady.batch_seconds
        self._knows_pace = steady.half_width is not None and steady.half_width <= limit
        return self._knows_pace

    def should_abandon(self, batches: int, elapsed: float) -> bool:
        """Return whether to end the epoch without draining the queue.

        If a batch takes seconds, workers finish their round together: an epoch that ends after the first batch of a
        round would show the throughput of one worker.
        """
        if elapsed <= ABANDON_FACTOR * self._seconds:
            return False
        self._is_late_since = min(self._is_late_since, elapsed)
        return batches % self._workers == 0 or elapsed > ROUND_FACTOR * self._is_late_since

    def next_epoch_batches(self, traces: Sequence[EpochTrace], elapsed: float) -> int | StopReason:
        """Return the limit of the next epoch in batches, or why the trial ends here."""
        if self._is_pruned:
            return "pruned"
        if self.epoch_batches is None or len(traces) >= self.request.epochs:
            return "done" if traces[-1].closed_after is None else "precise" if self._knows_pace else "time"
        measurement = Measurement(epochs=tuple(traces), epoch_batches=self.epoch_batches, stopped="time")
        ahead = estimate(measurement, self.request.config, self.request.epochs)
        has_later = len(traces) > count_slow_epochs(self.request.config, self.epoch_batches)
        if has_later and ahead.relative_error <= self.request.precision:
            return "precise"
        if len(traces) > 1 and ahead.samples_per_second * (1 + ahead.relative_error) < self._floor:
            return "pruned"
        left, overtime = self._seconds - elapsed, MAX_OVERTIME_RATIO * self._seconds
        if ahead.epoch_seconds <= left:
            return UNLIMITED_BATCHES
        if has_later or left < -overtime:
            return "time"
        if ahead.epoch_seconds <= left + overtime and traces[-1].closed_after is None:
            return UNLIMITED_BATCHES
        if len(traces) > 1 and left <= 0:
            return "time"
        queue_batches = self._workers * ((self.request.config.dataloader.prefetch_factor or 0) + 2)
        return align_to_workers(queue_batches + 2, self._workers, self.epoch_batches)
