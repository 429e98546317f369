"""Profile of a workload, as measured by the probe: its identity and the cost of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    Fraction,
    FrozenModel,
    LoaderConfig,
    LongText,
    StartMethod,
)
from autotune.profiles.schema import WorkloadIdentity
from autotune.request import WorkloadRequest
from autotune.settings import SettingName
from autotune.system.machine import Accelerator, Software

if TYPE_CHECKING:
    from autotune.protocol.messages import IdentityReport


class LinearCost(FrozenModel):
    """Linear model of seconds: `fixed_seconds + size * per_item_seconds`; an item is a sample or a worker."""

    fixed_seconds: BoundedSeconds
    per_item_seconds: BoundedSeconds

    def per_batch(self, size: int) -> float:
        """Return the seconds for `size` items."""
        return self.fixed_seconds + size * self.per_item_seconds


class LinearBytes(FrozenModel):
    """Linear model of bytes: `fixed_bytes + size * sample_bytes`."""

    fixed_bytes: BoundedBytes = 0
    sample_bytes: BoundedBytes = 0

    def per_batch(self, size: int) -> int:
        """Return the bytes for `size` samples."""
        return self.fixed_bytes + size * self.sample_bytes


class H2DBandwidth(FrozenModel):
    """Bandwidth of copies to the device from pageable and pinned memory, in bytes per second."""

    pageable: Annotated[float, Field(gt=0, le=1e30)]
    pinned: Annotated[float, Field(gt=0, le=1e30)]

    def of(self, *, pinned: bool) -> float:
        """Return the bandwidth from pinned or pageable memory."""
        return self.pinned if pinned else self.pageable


class CostlyLine(FrozenModel):
    """A function of the user's code by its first line, and its share of the loading time."""

    file: LongText
    line: BoundedCount
    function: LongText
    source: LongText  # empty if unknown
    share: Fraction


class WorkloadProfile(FrozenModel):
    """Properties and costs of a workload, as the probe measured them.

    Attributes:
        samples: Samples in an epoch; None if unknown.
        counted_samples: Samples in an epoch of an iterable dataset, as counted; None if an epoch takes long.
        epoch_batches: Batches in an epoch if the user's code makes the batches; else None.
        batching: `user` if a batch sampler or an unbatched dataset makes the batches; else `batch_size`.
        probe_batch_size: Batch size of the probe; the mean of the user's batches.
        largest_probed: Largest batch size it measured; costs of much larger batches are extrapolated.
        load_cost: Seconds to load and collate one batch in the training process.
        cpu_share: CPUs that loading keeps busy: 0 waits, 1 computes, more if it starts threads.
        collate_cost: Part of `load_cost` that collating takes; zero if unknown.
        transfer_cost: Seconds to transfer a batch from a worker to the training process.
        step_cost: Seconds of the step on a batch that is ready, on the device if there is one.
        h2d: None on the CPU, and if samples are on the device already.
        gpu_bytes: Device memory that the allocator holds for a step.
        workers_duplicate_data: Whether an iterable dataset delivers everything once per worker.
        reads_worker_info: Whether its code reads the number of its worker, or of all workers.
        costly_lines: Functions of the user that take most of loading in one process, the costliest first.
        differing_samples: Compared samples that workers return differently than the training process.
        worker_threads_cpu: CPU time of other threads while loading, over that of the one that loads.
        worker_bytes: Memory of a worker that is not forked; 0 if unknown.
        shards: Shards that an iterable dataset divides among its workers; None if unknown.
        baseline: Settings of the ready DataLoader the factory returned; None for PyTorch's defaults.
        loader_class: Class of a custom loader; None for a plain DataLoader.
        fixed_settings: Settings that the loader or the dataset decides, with their values.
        loader_decides: Those of them that a custom loader decides.
        ends_with_sampler: Whether an epoch of the loader ends when its sampler does.
        multiprocessing_context: Start method of the workload; None for Python's default.
        gpu_room_bytes: Device memory that the process held or could get when the probe began; 0 on the CPU.
        pinning: Whether pin_memory has an effect on the device in use.
        worker_start_cost: Seconds to start workers, with lazy imports and other work that each does first.
        rss_bytes: Resident memory of the process that loaded batches itself.
        worker_failure: How the process that started workers hung, died or failed; None if it worked.
    """

    description: LongText
    kind: Literal["map", "iterable"]
    samples: BoundedCount | None
    counted_samples: BoundedCount | None = None
    epoch_batches: BoundedCount | None = None
    batching: Literal["batch_size", "user"]
    drop_last: bool = False
    probe_batch_size: Annotated[int, Field(ge=1, le=2**63 - 1)]
    largest_probed: BoundedCount = 0
    load_cost: LinearCost
    cpu_share: BoundedRate
    collate_cost: LinearCost = LinearCost(fixed_seconds=0.0, per_item_seconds=0.0)
    transfer_cost: LinearCost = LinearCost(fixed_seconds=4e-4, per_item_seconds=0.0)
    step_cost: LinearCost
    step_cpus: BoundedRate = 0.0
    h2d: H2DBandwidth | None = None
    gpu_bytes: LinearBytes = LinearBytes()
    sample_bytes: BoundedBytes
    batch_tensors: BoundedCount
    on_accelerator: bool = False
    has_getitems: bool = False
    workers_duplicate_data: bool = False
    reads_worker_info: bool = False
    costly_lines: tuple[CostlyLine, ...] = ()
    differing_samples: BoundedCount = 0
    worker_threads_cpu: BoundedRate = 0.0
    worker_bytes: BoundedBytes = 0
    shards: BoundedCount | None = None
    baseline: LoaderConfig | None = None
    loader_class: LongText | None = None
    fixed_settings: dict[SettingName, int | bool | None] = Field(default_factory=dict)
    loader_decides: tuple[SettingName, ...] = ()
    ends_with_sampler: bool = True
    multiprocessing_context: StartMethod | None = None
    software: Software
    accelerator: Accelerator | None = None
    gpu_room_bytes: BoundedBytes = 0
    pinning: bool = False
    worker_start_cost: LinearCost = LinearCost(fixed_seconds=0.0, per_item_seconds=0.02)
    rss_bytes: BoundedBytes = 0
    worker_failure: LongText | None = None
    notes: tuple[LongText, ...] = ()

    def share(self, processes: int) -> WorkloadProfile:
        """Return the profile of one of several training processes that shard the data."""
        totals = {name: getattr(self, name) for name in ("samples", "epoch_batches", "shards")}
        return self.model_copy(update={name: -(-one // processes) for name, one in totals.items() if one is not None})


def identify(request: WorkloadRequest, found: WorkloadProfile | IdentityReport) -> WorkloadIdentity:
    """Return the identity of a workload, from its request and from what the child found."""
    return WorkloadIdentity(
        dataset=request.dataset,
        dataset_args=request.dataset_args,
        split=request.split,
        samples=found.samples,
        sample_bytes=found.sample_bytes,
        step=request.describe_step(),
        kind=found.kind,
        loader_class=found.loader_class,
        loader_decides=found.loader_decides,
        nproc_per_node=request.nproc_per_node,
    )
