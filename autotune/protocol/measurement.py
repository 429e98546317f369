"""Raw measurements of a trial; statistics are derived from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from autotune.config import Count, FrozenModel, LoaderConfig, LongText, Seconds

TrialStatus = Literal[
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

CODE_FAILURES: Final[tuple[TrialStatus, ...]] = ("workload_failed", "crashed", "stalled")
PICKLE_ADVICE: Final = (
    "Objects for a spawned worker are pickled: use classes and functions that can be imported by their names, "
    "or have the workers forked with --set multiprocessing_context=fork"
)
CLOCK_SECONDS: Final = 2e-6  # times of batches are rounded
MIN_EPOCH_SECONDS: Final = 1e-9


class EpochTrace(FrozenModel):
    """Raw record of one epoch, whole or cut short."""

    batch_seconds: tuple[Seconds, ...]  # end of each batch's step, since the epoch began; ascending
    end_seconds: Seconds  # includes the shutdown of workers that do not persist
    wait_seconds: Seconds  # total wait for batches
    samples: Count
    closed_after: Count | None  # batches consumed when the sampler was closed; None for a whole epoch
    batch_waits: tuple[Seconds, ...] = ()  # for each batch; empty if unknown

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if any(before > after for before, after in pairwise(self.batch_seconds)):
            raise ValueError("the times of batches must ascend")
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
    """How long one of several training processes waited for data."""

    wait_seconds: Seconds
    steps: Count  # in which every process had a batch
    samples: Count = 0  # of a whole epoch; 0 if unknown


class Measurement(FrozenModel):
    """Measurement of one trial; with several training processes, of the one that waited longest for data."""

    epochs: Annotated[tuple[EpochTrace, ...], Field(min_length=1)]  # in order, the first with cold workers
    epoch_batches: Count | None  # of a whole epoch; None if unknown
    stopped: StopReason
    epoch_samples: Annotated[Count, Field(ge=1)] | None = None  # of a whole epoch; None if unknown
    peak_gpu_bytes: Count = 0  # largest memory that the allocator held; 0 on the CPU
    ranks: tuple[RankWaits, ...] = ()  # empty for one process

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        if not sum(trace.samples for trace in self.epochs):
            raise ValueError("no sample was delivered")
        if any(trace.end_seconds < MIN_EPOCH_SECONDS for trace in self.epochs):
            raise ValueError("an epoch cannot take no time")
        return self


class TrialResult(FrozenModel):
    """Result of one trial, completed or failed."""

    status: TrialStatus
    config: LoaderConfig
    measurement: Measurement | None = None  # of a completed trial
    message: LongText = ""  # of a failure: what happened, the number against the limit, and the next step
    details: LongText = ""  # traceback or captured output
    peak_host_bytes: Count = 0  # 0 if unknown
    peak_shm_bytes: Count = 0
    samples: Count = 0  # up to a failure, including the batch that failed
    in_step: bool = False  # whether the training step failed
    cause: LongText = ""  # type and place of an error of the user's code, as in `ValueError at data.py:12`
