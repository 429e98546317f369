"""What the tuner and its child process say to each other.

All of it is JSON, one object a line, over a private socket. Raw batch times travel, not averages: a
stored average can never be questioned later.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    Fraction,
    FrozenModel,
    LoaderConfig,
    StartMethod,
)
from autotune.request import WorkloadRequest
from autotune.system.hardware import Accelerator, Software

PROTOCOL_VERSION: Final = 1
WORKER_PHASE: Final = "trying workers"  # the phase of a probe in which a dataset fails that fails only with workers

TrialKind = Literal[
    "completed",
    "rejected",
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
StopReason = Literal["done", "precise", "hopeless", "time"]

MAX_WORDS: Final = 20_000  # characters of a text that are kept: a traceback is shorter, a tensor's text is not
CLOCK_SECONDS: Final = 2e-6  # moments of batches are rounded
MIN_EPOCH_SECONDS: Final = 1e-9


def _shorten(text: str) -> str:
    if len(text) <= MAX_WORDS:
        return text
    half = MAX_WORDS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


LongText = Annotated[str, AfterValidator(_shorten)]
"""Text for people, cut in the middle where it is longer than anybody reads."""


class EpochTrace(FrozenModel):
    """The raw record of one pass over the loader, cut short or whole.

    Attributes:
        batch_seconds: When each batch had been consumed, in seconds since the epoch began; ascending.
        end_seconds: When the loader had said that the epoch is over, workers taken down where they do not
            persist, in seconds since the epoch began.
        wait_seconds: Seconds of the epoch that were spent waiting for the loader.
        samples: Samples delivered.
        promised_batches: Batches the sampler handed out; None where only the data knows (iterable).
        closed_after: Batches consumed when the sampler was told to stop; None for a whole epoch.
    """

    batch_seconds: tuple[BoundedSeconds, ...]
    end_seconds: BoundedSeconds
    wait_seconds: BoundedSeconds
    samples: BoundedCount
    promised_batches: BoundedCount | None
    closed_after: BoundedCount | None

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


class Measurement(FrozenModel):
    """What one trial saw: its epochs in order, the first one with cold workers.

    Attributes:
        epochs: Traces, at least one.
        epoch_batches: Batches in a whole epoch of this configuration; None when not known.
        epoch_samples: Samples in it, of which the last batch may hold fewer; None when not known.
        stopped: Why measuring ended.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
        gpu_growth_bytes: By how much that grew after half of the batches; 0 when it had settled.
    """

    epochs: Annotated[tuple[EpochTrace, ...], Field(min_length=1)]
    epoch_batches: BoundedCount | None
    stopped: StopReason
    epoch_samples: Annotated[BoundedCount, Field(ge=1)] | None = None
    peak_gpu_bytes: BoundedBytes = 0
    gpu_growth_bytes: BoundedBytes = 0

    @model_validator(mode="after")
    def _refuse_nothing(self) -> Self:
        if not sum(trace.samples for trace in self.epochs):
            raise ValueError("no sample was delivered")
        if any(trace.end_seconds < MIN_EPOCH_SECONDS for trace in self.epochs):
            raise ValueError("an epoch cannot take no time")
        return self


class TrialRequest(FrozenModel):
    """One measurement to be made.

    Attributes:
        config: The configuration to measure.
        epochs: Length of the training run the score stands for.
        seconds: Most seconds of measuring.
        precision: Relative half-width of the 95 % interval at which measuring may end early.
        hopeless_below: Samples per second under which the trial may end early; None never.
        fresh: Whether to measure in a new process, as a training run starts.
        gpu_bytes: Most device memory that the allocator may hold; None for all there is.
    """

    config: LoaderConfig
    epochs: BoundedCount
    seconds: BoundedSeconds
    precision: Fraction = 0.02
    hopeless_below: BoundedRate | None = None
    fresh: bool = False
    gpu_bytes: BoundedBytes | None = None


class TrialResult(FrozenModel):
    """What became of one trial. A failed trial is a result of a named kind with its evidence.

    Attributes:
        kind: The outcome.
        config: The configuration.
        measurement: The raw record, when the kind is `completed`.
        message: For a failure: what happened, the number against the limit, and the next step.
        details: Traceback or captured output that supports the message; may be empty.
        peak_host_bytes: Largest host memory seen; 0 when not sampled.
        peak_shm_bytes: Largest /dev/shm use seen; 0 when not sampled.
        seconds: Wall time of the trial, everything included.
        samples: Samples gone through until it failed, those of the batch that failed included; 0 where it completed.
        in_step: Whether it was the training step that failed.
        index: Index of the sample that failed; None where it is not known.
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


RunTrial = Callable[[TrialRequest], TrialResult]
"""The seam between the story and the measurement: a child process in a real run, a formula in a test."""


class LinearCost(FrozenModel):
    """Seconds that something takes, as `fixed_seconds + size * sample_seconds`; the size counts samples or workers."""

    fixed_seconds: BoundedSeconds
    sample_seconds: BoundedSeconds

    def per_batch(self, size: int) -> float:
        """Give the seconds for `size` samples (or workers)."""
        return self.fixed_seconds + size * self.sample_seconds


class LinearBytes(FrozenModel):
    """Bytes that something takes, as `fixed_bytes + size * sample_bytes`."""

    fixed_bytes: BoundedBytes = 0
    sample_bytes: BoundedBytes = 0

    def per_batch(self, size: int) -> int:
        """Give the bytes for `size` samples."""
        return self.fixed_bytes + size * self.sample_bytes


class H2DBandwidth(FrozenModel):
    """How fast batches get to the device.

    Attributes:
        pageable: Bytes per second from ordinary memory, greater than zero.
        pinned: Bytes per second from page-locked memory, greater than zero.
        overlap: Share of a copy on a stream of its own that is hidden behind a busy device.
    """

    pageable: Annotated[float, Field(gt=0, le=1e30)]
    pinned: Annotated[float, Field(gt=0, le=1e30)]
    overlap: Fraction = 0.0

    def of(self, *, pinned: bool) -> float:
        """Give the rate from pinned or from pageable memory, in bytes per second."""
        return self.pinned if pinned else self.pageable


class WorkloadProfile(FrozenModel):
    """What the probe learned about the workload.

    Attributes:
        description: Type of the dataset, for people.
        kind: `map` or `iterable`.
        samples: Samples in an epoch; None when not known.
        epoch_batches: Batches in an epoch when the batching is the user's own; else None.
        batching: `batch_size` can be tuned, or is the `own` of a batch sampler or an unbatched dataset.
        drop_last: Whether an incomplete last batch is dropped.
        probe_batch_size: Batch size the probe measured with; mean of the own batches otherwise.
        largest_probed: Largest batch size it measured; costs of much larger batches are extrapolated.
        load: Seconds to load and collate one batch in the training process.
        cpu_share: CPUs kept busy meanwhile: 0 waits, 1 computes, more where loading starts threads of its own.
        collate: The part of `load` that collating takes; zero when not measured.
        transfer: Seconds a batch takes from a worker to the training process beyond loading and collating.
        step: Seconds the step takes on a batch that is ready, on the device where there is one.
        copies: How fast batches get there; None on the CPU, and where samples are on the device already.
        gpu_bytes: Device memory that the allocator holds for a step.
        step_cpus: CPUs that the step keeps busy: near 0 on an accelerator.
        sample_bytes: Bytes of tensors per sample, mean.
        batch_tensors: Tensors in a batch.
        on_accelerator: Whether samples are on the accelerator already.
        has_getitems: Whether the dataset fetches a whole batch at once, by `__getitems__`.
        duplicated: Whether an iterable dataset delivers everything once per worker.
        baseline: Settings of the ready DataLoader the factory returned; None for PyTorch's defaults.
        multiprocessing_context: Start method the workload brings along; None is the interpreter's default.
        software: Versions the child runs with.
        accelerator: The accelerator in use; None on the CPU.
        gpu_room_bytes: Device memory that this process holds or could still get when the probe began; 0 on the CPU.
        pinning: Whether pin_memory has an effect on the device in use.
        start: Seconds from starting so many workers to their first samples, loading itself left out.
        first_use_seconds: CPU time that each worker of a fresh process's first epoch spends on what the training
            process has never done (lazy imports, caches); workers forked from a warm process inherit it.
        manager_seconds: The same for starting torch's shared-memory manager with the `file_system` strategy.
        rss_bytes: Resident memory of the child after loading the workload.
        worker_failure: How the process hung or died when workers were looked at; None when they worked.
        notes: Sentences the user should read.
    """

    description: LongText
    kind: Literal["map", "iterable"]
    samples: BoundedCount | None
    epoch_batches: BoundedCount | None = None
    batching: Literal["batch_size", "own"]
    drop_last: bool = False
    probe_batch_size: Annotated[int, Field(ge=1, le=2**63 - 1)]
    largest_probed: BoundedCount = 0
    load: LinearCost
    cpu_share: BoundedRate
    collate: LinearCost = LinearCost(fixed_seconds=0.0, sample_seconds=0.0)
    transfer: LinearCost = LinearCost(fixed_seconds=4e-4, sample_seconds=0.0)
    step: LinearCost
    step_cpus: BoundedRate = 0.0
    copies: H2DBandwidth | None = None
    gpu_bytes: LinearBytes = LinearBytes()
    sample_bytes: BoundedBytes
    batch_tensors: BoundedCount
    on_accelerator: bool = False
    has_getitems: bool = False
    duplicated: bool = False
    baseline: LoaderConfig | None = None
    multiprocessing_context: StartMethod | None = None
    software: Software
    accelerator: Accelerator | None = None
    gpu_room_bytes: BoundedBytes = 0
    pinning: bool = False
    start: LinearCost = LinearCost(fixed_seconds=0.0, sample_seconds=0.02)
    first_use_seconds: BoundedSeconds = 0.0
    manager_seconds: BoundedSeconds = 0.0
    rss_bytes: BoundedBytes = 0
    worker_failure: LongText | None = None
    notes: tuple[LongText, ...] = ()


class LoadCommand(FrozenModel):
    """Parent to child, first: what to load, and the batch sizes the probe should look at."""

    op: Literal["hello"] = "hello"
    version: Literal[1] = PROTOCOL_VERSION
    workload: WorkloadRequest


class ProbeCommand(FrozenModel):
    """Parent to child: profile the workload.

    Attributes:
        batch_size: Batch size to measure with, where it can be set.
        largest: Largest batch size that will be searched; measured too if that does not take long.
        usable_cpus: CPUs that can be kept busy, by affinity and by every quota.
        with_workers: Whether to measure what workers cost; False after they hung or died in an earlier probe.
    """

    op: Literal["probe"] = "probe"
    batch_size: Annotated[int, Field(ge=1)]
    largest: Annotated[int, Field(ge=1)]
    usable_cpus: Annotated[float, Field(gt=0, le=1e6)]
    with_workers: bool = True


class TrialCommand(FrozenModel):
    """Parent to child: run a trial."""

    op: Literal["run"] = "run"
    trial: TrialRequest


class ReleaseCommand(FrozenModel):
    """Parent to child: take the trial's workers down."""

    op: Literal["release"] = "release"


class ProgressReport(FrozenModel):
    """Child to parent: what it is doing, and how far it got.

    Attributes:
        phase: Words for people.
        batches: Batches consumed since the trial began.
    """

    op: Literal["progress"] = "progress"
    phase: LongText
    batches: BoundedCount = 0


class ReadyReport(FrozenModel):
    """Child to parent: the last command is done and nothing of it is left.

    Attributes:
        on_device: Whether it uses an accelerator.
    """

    op: Literal["ready"] = "ready"
    on_device: bool = False


class ProbeReport(FrozenModel):
    """Child to parent: the profile."""

    op: Literal["probed"] = "probed"
    profile: WorkloadProfile


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
        samples: Samples of the trial up to there, those of the batch that failed included.
        index: Index of the sample that failed; None where it is not known.
    """

    op: Literal["failed"] = "failed"
    where: str
    error: LongText
    details: LongText = ""
    on_device: bool = False
    samples: BoundedCount = 0
    index: BoundedCount | None = None


Command = Annotated[LoadCommand | ProbeCommand | TrialCommand | ReleaseCommand, Field(discriminator="op")]
Report = Annotated[ProgressReport | ReadyReport | ProbeReport | TrialReport | FailureReport, Field(discriminator="op")]
COMMAND: Final[TypeAdapter[Command]] = TypeAdapter(Command)
REPORT: Final[TypeAdapter[Report]] = TypeAdapter(Report)


CODE_FAILURES: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "stalled")
