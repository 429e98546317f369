"""What the tuner and its child process say to each other.

All of it is JSON, one object a line, over a private socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    Fraction,
    FrozenModel,
    LoaderConfig,
    LongText,
)
from autotune.protocol.measurement import Measurement, TrialResult
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.settings import SettingName
from autotune.system.hardware import Accelerator, Software

PROTOCOL_VERSION: Final = 1
MEASURING_PHASE: Final = "measuring"  # the phase of a trial from which on it is timed
WORKER_PHASE: Final = "trying workers"  # the phase of a probe in which a dataset fails that fails only with workers


class TrialRequest(FrozenModel):
    """One measurement to be made.

    Attributes:
        epochs: Length of the training run that throughput is estimated for.
        seconds: Of measuring, at most.
        precision: Relative half-width of the 95% interval at which measuring may end early.
        prune_below: Throughput below which the trial may end early, in samples per second; None never ends it.
        fresh: Whether to measure in a new process, as a training run starts.
        gpu_bytes: Most device memory that the allocator may hold; None for all there is.
    """

    config: LoaderConfig
    epochs: BoundedCount
    seconds: BoundedSeconds
    precision: Fraction = 0.02
    prune_below: BoundedRate | None = None
    fresh: bool = False
    gpu_bytes: BoundedBytes | None = None


RunTrial = Callable[[TrialRequest], TrialResult]
"""The seam between the story and the measurement: a child process in a real run, a formula in a test."""


class LoadCommand(FrozenModel):
    """Parent to child, first: what to load.

    Attributes:
        warm_up: Whether the process may read samples by itself, outside of trials.
        ranks: Training processes to load it in, where the workload is trained by several.
        ends_with_sampler: Whether an epoch of the loader ends when its sampler does; None if unknown.
    """

    op: Literal["hello"] = "hello"
    version: Literal[1] = PROTOCOL_VERSION
    workload: WorkloadRequest
    warm_up: bool = True
    ranks: Annotated[int, Field(ge=1)] = 1
    ends_with_sampler: bool | None = None


class Traces(FrozenModel):
    """What reading left in a process, which workers that are forked from it would inherit.

    Attributes:
        threads: Whether threads were left: Python's, or a library's own, which a fork ends.
        files: Whether files were left open.
        hangs: Whether a worker was seen to wait for such a thread.
    """

    threads: bool = False
    files: bool = False
    hangs: bool = False


class ProbeCommand(FrozenModel):
    """Parent to child: profile the workload.

    Attributes:
        batch_size: Batch size to measure with, where it can be set.
        largest: Largest batch size that will be searched; measured too if that does not take long.
        usable_cpus: CPUs that can be kept busy, by affinity and by every quota.
        with_workers: Whether to measure what workers cost; False after they hung or died in an earlier probe.
        traces: What reading was found to leave; workers are then looked at before the process reads by itself.
    """

    op: Literal["probe"] = "probe"
    batch_size: Annotated[int, Field(ge=1)]
    largest: Annotated[int, Field(ge=1)]
    usable_cpus: Annotated[float, Field(gt=0, le=1e6)]
    with_workers: bool = True
    traces: Traces | None = None


class IdentifyCommand(FrozenModel):
    """Parent to child: say which workload this is, by a few batches of this size where it can be set."""

    op: Literal["identify"] = "identify"
    batch_size: Annotated[int, Field(ge=1)]


class TrialCommand(FrozenModel):
    """Parent to child: run a trial."""

    op: Literal["run"] = "run"
    trial: TrialRequest


class ReleaseCommand(FrozenModel):
    """Parent to child: take the trial's workers down."""

    op: Literal["release"] = "release"


class ProgressReport(FrozenModel):
    """Child to parent: what it is doing, for people, and how many batches of the trial it has consumed."""

    op: Literal["progress"] = "progress"
    phase: LongText
    batches: BoundedCount = 0


class ReadyReport(FrozenModel):
    """Child to parent: the last command is done and nothing of it is left; whether it uses an accelerator."""

    op: Literal["ready"] = "ready"
    on_device: bool = False


class ProbeReport(FrozenModel):
    """Child to parent: the profile."""

    op: Literal["probed"] = "probed"
    profile: WorkloadProfile


class TracesReport(FrozenModel):
    """Child to parent: reading in this process left traces; the probe is to be given to another one."""

    op: Literal["traces"] = "traces"
    traces: Traces


class IdentityReport(FrozenModel):
    """Child to parent: which workload this is, in the words of `WorkloadProfile`."""

    op: Literal["identified"] = "identified"
    kind: Literal["map", "iterable"]
    samples: BoundedCount | None
    sample_bytes: BoundedBytes
    loader_class: LongText | None = None
    loader_decides: tuple[SettingName, ...] = ()
    software: Software
    accelerator: Accelerator | None = None


class TrialReport(FrozenModel):
    """Child to parent: the trial ran to its end; its workers still live."""

    op: Literal["measured"] = "measured"
    measurement: Measurement


class FailureReport(FrozenModel):
    """Child to parent: the user's code raised, or torch did.

    Attributes:
        where: `import`, `factory`, `collate`, `step`, `dataset` or `trial`.
        error: Type and text of the exception.
        details: Its traceback.
        on_device: Whether the process uses an accelerator, so that errors of one can be its own.
        samples: Of the trial up to there, those of the batch that failed included.
        index: Of the sample that failed; None where it is not known.
        rank: Of several training processes, the one that failed; None where all did, or there is one.
    """

    op: Literal["failed"] = "failed"
    where: str
    error: LongText
    details: LongText = ""
    on_device: bool = False
    samples: BoundedCount = 0
    index: BoundedCount | None = None
    rank: BoundedCount | None = None


class LostRankReport(FrozenModel):
    """Child to parent: one of several training processes has ended; its status as `subprocess` gives it."""

    op: Literal["lost"] = "lost"
    rank: BoundedCount
    status: int


Command = Annotated[
    LoadCommand | ProbeCommand | IdentifyCommand | TrialCommand | ReleaseCommand, Field(discriminator="op")
]
Report = Annotated[
    ProgressReport
    | ReadyReport
    | ProbeReport
    | TracesReport
    | IdentityReport
    | TrialReport
    | FailureReport
    | LostRankReport,
    Field(discriminator="op"),
]
COMMAND: Final[TypeAdapter[Command]] = TypeAdapter(Command)
REPORT: Final[TypeAdapter[Report]] = TypeAdapter(Report)
