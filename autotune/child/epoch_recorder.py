"""Notes the times of one epoch, and counts what arrives in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from autotune.child.factory_calls import MeasuredLoader
from autotune.child.step_timer import StepTimer
from autotune.profiles.batches import count_samples
from autotune.trial.measurement import EpochTrace


class EpochRecorder:
    """Notes the times of one epoch; `delivered` samples are those that arrived, where they are counted."""

    def __init__(self, loader: MeasuredLoader, timer: StepTimer, *, is_map: bool, is_counted: bool) -> None:
        self._loader = loader
        self._timer = timer
        self._is_map = is_map  # then the sampler counts the samples
        self._is_counted = is_counted
        self._started = time.perf_counter()
        self.batches = 0
        self.delivered = 0
        self._closed_after: int | None = None

    def note_batch(self, batch: Any) -> None:
        """Record that a batch has been given to the step."""
        self.batches += 1
        if self._is_counted:
            self.delivered += count_samples(batch, self._loader.batch_size or 1)

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is handed out, or soon will not be."""
        return self._closed_after is not None or self._loader.index_source.closed

    def close(self, epoch_batches: int | None) -> None:
        """Have the epoch end soon, and record where it was told to."""
        self._closed_after = self.batches
        self._loader.close(epoch_batches)

    def count_samples(self) -> int:
        """Count the samples up to and with the batch under way."""
        if self._is_map:
            return self._loader.index_source.count_samples(self.batches + 1)
        return self.delivered + (self._loader.batch_size or 1)

    def snapshot(self) -> EpochTrace:
        """Give the epoch as far as the device is through with it, as if it were closed now."""
        moments, waited = self._timer.read()
        return self._trace(moments, waited, moments[-1] if moments else 0.0, len(moments))

    def finish(self) -> EpochTrace:
        """Give the epoch, now that the loader says it is over or that it was left, and the device is through."""
        ended = time.perf_counter() - self._started
        moments, waited = self._timer.read()
        closed = self._closed_after
        if closed is None and self._loader.index_source.closed:
            closed = len(moments)  # it closed by itself, at a mini-epoch's length
        return self._trace(moments, waited, max([ended, *moments[-1:]]), closed)

    def _trace(
        self, moments: Sequence[float], waited: float, end_seconds: float, closed_after: int | None
    ) -> EpochTrace:
        source = self._loader.index_source
        return EpochTrace(
            batch_seconds=tuple(round(moment, 6) for moment in moments),
            end_seconds=end_seconds,
            wait_seconds=waited,
            batch_waits=tuple(round(wait, 6) for wait in self._timer.waits[: len(moments)]),
            samples=source.count_samples(len(moments)) if self._is_map else self.delivered,
            promised_batches=source.batches if self._is_map else None,
            closed_after=closed_after,
        )
