"""What a trial measured: raw moments of batches, not averages, for a stored average can never be questioned later."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedSeconds,
    FrozenModel,
    LoaderConfig,
    LongText,
)

TrialKind = Literal[
    "completed",
    "out_of_memory",
    "shm_exhausted",
    "too_many_files",
    "timed_out",
    "stalled",
    "crashed",
    "device_failed",
    "device_lost",
    "workload_failed",
]
StopReason = Literal["done", "precise", "pruned", "time"]

CODE_FAILURES: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "stalled")
CLOCK_SECONDS: Final = 2e-6  # moments of batches are rounded
MIN_EPOCH_SECONDS: Final = 1e-9


class EpochTrace(FrozenModel):
    """The raw record of one pass over the loader, cut short or whole.

    Attributes:
        batch_seconds: When each batch had been consumed, since the epoch began; ascending.
        end_seconds: When the loader had said that the epoch is over, workers taken down where they do not persist.
        wait_seconds: Time of the epoch that was spent waiting for the loader.
        batch_waits: Wait for each batch; empty if unknown.
        promised_batches: Batches the sampler handed out; None where only the data knows (iterable).
        closed_after: Batches consumed when the sampler was told to stop; None for a whole epoch.
    """

    batch_seconds: tuple[BoundedSeconds, ...]
    end_seconds: BoundedSeconds
    wait_seconds: BoundedSeconds
    samples: BoundedCount
    promised_batches: BoundedCount | None
    closed_after: BoundedCount | None
    batch_waits: tuple[BoundedSeconds, ...] = ()

    @model_validator(mode="after")
    def _refuse_what_no_clock_shows(self) -> Self:
        if any(before > after for before, after in pairwise(self.batch_seconds)):
            raise ValueError("the moments of batches must ascend")
        if self.batch_seconds and self.end_seconds + CLOCK_SECONDS < self.batch_seconds[-1]:
            raise ValueError("an epoch cannot end before its last batch")
        if self.closed_after is not None and self.closed_after > self.batches:
            raise ValueError("an epoch cannot be closed after more batches than it has")
        return self

    @property
    def batches(self) -> int:
        """Batches consumed."""
        return len(self.batch_seconds)


class RankWaits(FrozenModel):
    """How one of several training processes of a trial kept up with the others.

    Attributes:
        wait_seconds: What it waited for its loader, over all steps.
        steps: Steps in which all had a batch.
        late_steps: Those in which it got its batch last, a millisecond or more after the first of them.
        samples: Of a whole epoch: as delivered by the first, or as promised; 0 when not known.
    """

    wait_seconds: BoundedSeconds
    steps: BoundedCount
    late_steps: BoundedCount
    samples: BoundedCount = 0


class Measurement(FrozenModel):
    """What one trial saw: its epochs in order, the first one with cold workers.

    Attributes:
        epoch_batches: Batches in a whole epoch of this configuration; None when not known.
        epoch_samples: Samples in it, of which the last batch may hold fewer; None when not known.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
        gpu_growth_bytes: By how much that grew after half of the batches; 0 when it had settled.
        ranks: Of several training processes, how each kept up; the rest is that of the one that waited most. Empty for
            one process.
    """

    epochs: Annotated[tuple[EpochTrace, ...], Field(min_length=1)]
    epoch_batches: BoundedCount | None
    stopped: StopReason
    epoch_samples: Annotated[BoundedCount, Field(ge=1)] | None = None
    peak_gpu_bytes: BoundedBytes = 0
    gpu_growth_bytes: BoundedBytes = 0
    ranks: tuple[RankWaits, ...] = ()

    @model_validator(mode="after")
    def _refuse_nothing(self) -> Self:
        if not sum(trace.samples for trace in self.epochs):
            raise ValueError("no sample was delivered")
        if any(trace.end_seconds < MIN_EPOCH_SECONDS for trace in self.epochs):
            raise ValueError("an epoch cannot take no time")
        return self


class TrialResult(FrozenModel):
    """What became of one trial. A failed trial is a result of a named kind with its evidence.

    Attributes:
        measurement: The raw record, when the kind is `completed`.
        message: For a failure: what happened, the number against the limit, and the next step.
        details: Traceback or captured output that supports the message; may be empty.
        peak_host_bytes: Largest host memory seen; 0 when not sampled, and so for /dev/shm.
        seconds: Wall time of the trial, everything included.
        samples: Samples gone through until it failed, those of the batch that failed included; 0 where it completed.
        in_step: Whether it was the training step that failed.
        index: Of the sample that failed; None where it is not known.
        cause: Type and place of an error of the user's code, as in `ValueError at data.py:12`; else empty.
    """

    kind: TrialKind
    config: LoaderConfig
    measurement: Measurement | None = None
    message: LongText = ""
    details: LongText = ""
    peak_host_bytes: BoundedBytes = 0
    peak_shm_bytes: BoundedBytes = 0
    seconds: BoundedSeconds = 0.0
    samples: BoundedCount = 0
    in_step: bool = False
    index: BoundedCount | None = None
    cause: LongText = ""
