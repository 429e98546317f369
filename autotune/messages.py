"""What the tuner and its child process say to each other.

All of it is JSON, one object a line, over a private socket. Raw batch times travel, not averages: a
stored average can never be questioned later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from autotune.request import WorkloadRequest
from autotune.schema import (
    Bytes,
    Count,
    Fraction,
    LoaderConfig,
    Rate,
    Seconds,
    Software,
    StartMethod,
    Value,
)

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
    "workload_failed",
]
StopReason = Literal["done", "precise", "hopeless", "time"]


class EpochTrace(Value):
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

    batch_seconds: tuple[Seconds, ...]
    end_seconds: Seconds
    wait_seconds: Seconds
    samples: Count
    promised_batches: Count | None
    closed_after: Count | None

    @property
    def batches(self) -> int:
        """Batches consumed."""
        return len(self.batch_seconds)


class Measurement(Value):
    """What one trial saw: its epochs in order, the first one with cold workers.

    Attributes:
        epochs: Traces, at least one.
        epoch_batches: Batches in a whole epoch of this configuration; None when not known.
        stopped: Why measuring ended.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
    """

    epochs: Annotated[tuple[EpochTrace, ...], Field(min_length=1)]
    epoch_batches: Count | None
    stopped: StopReason
    peak_gpu_bytes: Bytes = 0


class TrialRequest(Value):
    """One measurement to be made.

    Attributes:
        config: The configuration to measure.
        epochs: Length of the training run the score stands for.
        seconds: Most seconds of measuring.
        precision: Relative half-width of the 95 % interval at which measuring may end early.
        hopeless_below: Samples per second under which the trial may end early; None never.
        fresh: Whether to measure in a new process, as a training run starts.
    """

    config: LoaderConfig
    epochs: Count
    seconds: Seconds
    precision: Fraction = 0.02
    hopeless_below: Rate | None = None
    fresh: bool = False


class TrialResult(Value):
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
    """

    kind: TrialKind
    config: LoaderConfig
    measurement: Measurement | None = None
    message: str = ""
    details: str = ""
    peak_host_bytes: Bytes = 0
    peak_shm_bytes: Bytes = 0
    seconds: Seconds = 0.0


RunTrial = Callable[[TrialRequest], TrialResult]
"""The seam between the story and the measurement: a child process in a real run, a formula in a test."""


class LinearCost(Value):
    """Seconds that something takes, as `fixed_seconds + size * sample_seconds`; the size counts samples or workers."""

    fixed_seconds: Seconds
    sample_seconds: Seconds

    def per_batch(self, size: int) -> float:
        """Give the seconds for `size` samples (or workers)."""
        return self.fixed_seconds + size * self.sample_seconds


class WorkloadProfile(Value):
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
        step: Seconds the step takes on a batch that is ready.
        step_cpus: CPUs that the step keeps busy: near 0 on an accelerator.
        sample_bytes: Bytes of tensors per sample, mean.
        batch_tensors: Tensors in a batch.
        on_accelerator: Whether samples are on the accelerator already.
        has_getitems: Whether the dataset fetches a whole batch at once, by `__getitems__`.
        duplicated: Whether an iterable dataset delivers everything once per worker.
        baseline: Settings of the ready DataLoader the factory returned; None for PyTorch's defaults.
        multiprocessing_context: Start method the workload brings along; None is the interpreter's default.
        software: Versions the child runs with.
        gpu: Name of the accelerator in use; None on the CPU.
        gpu_count: Accelerators of that name.
        gpu_memory_bytes: Memory of the accelerator; 0 on the CPU.
        pinning: Whether pin_memory has an effect on the device in use.
        start: Seconds from starting so many workers to their first samples, loading itself left out.
        first_use_seconds: CPU time that each worker of a fresh process's first epoch spends on what the training
            process has never done (lazy imports, caches); workers forked from a warm process inherit it.
        manager_seconds: The same for starting torch's shared-memory manager with the `file_system` strategy.
        rss_bytes: Resident memory of the child after loading the workload.
        notes: Sentences the user should read.
    """

    description: str
    kind: Literal["map", "iterable"]
    samples: Count | None
    epoch_batches: Count | None = None
    batching: Literal["batch_size", "own"]
    drop_last: bool = False
    probe_batch_size: Annotated[int, Field(ge=1)]
    largest_probed: Count = 0
    load: LinearCost
    cpu_share: Rate
    collate: LinearCost = LinearCost(fixed_seconds=0.0, sample_seconds=0.0)
    transfer: LinearCost = LinearCost(fixed_seconds=4e-4, sample_seconds=0.0)
    step: LinearCost
    step_cpus: Rate = 0.0
    sample_bytes: Bytes
    batch_tensors: Count
    on_accelerator: bool = False
    has_getitems: bool = False
    duplicated: bool = False
    baseline: LoaderConfig | None = None
    multiprocessing_context: StartMethod | None = None
    software: Software
    gpu: str | None = None
    gpu_count: Count = 0
    gpu_memory_bytes: Bytes = 0
    pinning: bool = False
    start: LinearCost = LinearCost(fixed_seconds=0.0, sample_seconds=0.02)
    first_use_seconds: Seconds = 0.0
    manager_seconds: Seconds = 0.0
    rss_bytes: Bytes = 0
    notes: tuple[str, ...] = ()


class Hello(Value):
    """Parent to child, first: what to load, and the batch sizes the probe should look at."""

    op: Literal["hello"] = "hello"
    version: Literal[1] = PROTOCOL_VERSION
    workload: WorkloadRequest


class Probe(Value):
    """Parent to child: profile the workload.

    Attributes:
        batch_size: Batch size to measure with, where it can be set.
        largest: Largest batch size that will be searched; measured too if that does not take long.
        with_workers: Whether to measure what workers cost; False after they hung or died in an earlier probe.
    """

    op: Literal["probe"] = "probe"
    batch_size: Annotated[int, Field(ge=1)]
    largest: Annotated[int, Field(ge=1)]
    with_workers: bool = True


class Run(Value):
    """Parent to child: run a trial."""

    op: Literal["run"] = "run"
    trial: TrialRequest


class Release(Value):
    """Parent to child: take the trial's workers down."""

    op: Literal["release"] = "release"


class Progress(Value):
    """Child to parent: what it is doing, and how far it got.

    Attributes:
        phase: Words for people.
        batches: Batches consumed since the trial began.
    """

    op: Literal["progress"] = "progress"
    phase: str
    batches: Count = 0


class Ready(Value):
    """Child to parent: the last command is done and nothing of it is left."""

    op: Literal["ready"] = "ready"


class Probed(Value):
    """Child to parent: the profile."""

    op: Literal["probed"] = "probed"
    profile: WorkloadProfile


class Measured(Value):
    """Child to parent: the trial ran to its end; its workers still live."""

    op: Literal["measured"] = "measured"
    measurement: Measurement


class Failed(Value):
    """Child to parent: the user's code raised, or torch did.

    Attributes:
        where: `import`, `factory`, `collate`, `step`, `dataset` or `trial`.
        error: Type and text of the exception.
        details: Its traceback.
    """

    op: Literal["failed"] = "failed"
    where: str
    error: str
    details: str = ""


Command = Annotated[Hello | Probe | Run | Release, Field(discriminator="op")]
Report = Annotated[Progress | Ready | Probed | Measured | Failed, Field(discriminator="op")]
COMMAND: Final[TypeAdapter[Command]] = TypeAdapter(Command)
REPORT: Final[TypeAdapter[Report]] = TypeAdapter(Report)
