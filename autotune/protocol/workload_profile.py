"""What the probe learned about a workload, and what its parts cost."""

from __future__ import annotations

from typing import Annotated, Literal

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
from autotune.settings import SettingName
from autotune.system.hardware import Accelerator, Software


class LinearCost(FrozenModel):
    """Seconds that something takes, as `fixed_seconds + size * per_item_seconds`; an item is a sample or a worker."""

    fixed_seconds: BoundedSeconds
    per_item_seconds: BoundedSeconds

    def per_batch(self, size: int) -> float:
        """Give the seconds for so many items."""
        return self.fixed_seconds + size * self.per_item_seconds


class LinearBytes(FrozenModel):
    """Bytes that something takes, as `fixed_bytes + size * sample_bytes`."""

    fixed_bytes: BoundedBytes = 0
    sample_bytes: BoundedBytes = 0

    def per_batch(self, size: int) -> int:
        """Give the bytes for `size` samples."""
        return self.fixed_bytes + size * self.sample_bytes


class H2DBandwidth(FrozenModel):
    """How fast batches get to the device from pageable and from pinned memory, in bytes per second."""

    pageable: Annotated[float, Field(gt=0, le=1e30)]
    pinned: Annotated[float, Field(gt=0, le=1e30)]
    overlap: Fraction = 0.0  # of a copy on a stream of its own, that is hidden behind a busy device

    def of(self, *, pinned: bool) -> float:
        """Give the rate from pinned or from pageable memory."""
        return self.pinned if pinned else self.pageable


class CostlyLine(FrozenModel):
    """A line of the user's own code, and its share of the time of loading."""

    file: LongText
    line: BoundedCount
    function: LongText
    source: LongText  # empty if unknown
    share: Fraction


class WorkloadProfile(FrozenModel):
    """What the probe learned about the workload.

    Attributes:
        description: Type of the dataset, for people.
        samples: Samples in an epoch; None when not known.
        counted_samples: The same of an iterable dataset that does not tell, where an epoch is short enough to count.
        epoch_batches: Batches in an epoch when the batching is the user's own; else None.
        batching: `batch_size` can be tuned, or is the `user`'s: that of a batch sampler or an unbatched dataset.
        probe_batch_size: Batch size the probe measured with; mean of the user's batches otherwise.
        largest_probed: Largest batch size it measured; costs of much larger batches are extrapolated.
        load_cost: Seconds to load and collate one batch in the training process.
        cpu_share: CPUs kept busy meanwhile: 0 waits, 1 computes, more where loading starts threads of its own.
        collate_cost: The part of `load_cost` that collating takes; zero when not measured.
        transfer_cost: Seconds a batch takes from a worker to the training process beyond loading and collating.
        step_cost: Seconds the step takes on a batch that is ready, on the device where there is one.
        h2d: How fast batches get there; None on the CPU, and where samples are on the device already.
        gpu_bytes: Device memory that the allocator holds for a step.
        step_cpus: CPUs that the step keeps busy: near 0 on an accelerator.
        sample_bytes: Bytes of tensors per sample, mean.
        on_accelerator: Whether samples are on the accelerator already.
        has_getitems: Whether the dataset fetches a whole batch at once, by `__getitems__`.
        workers_duplicate_data: Whether an iterable dataset delivers everything once per worker.
        costly_lines: Lines of the user's own code that take most of loading in one process, the costliest first.
        differing_samples: Samples that came out of workers differently than without, of those that were compared.
        worker_threads_cpu: CPU time of a worker's other threads over that of the one that loads; 0 where not known.
        worker_bytes: What such a worker takes of the machine's memory; 0 where that is not known, or forked and shared.
        shards: Pieces that an iterable dataset shares out to its workers, as it says; None where it does not.
        baseline: Settings of the ready DataLoader the factory returned; None for PyTorch's defaults.
        loader_class: The class of the user's own loader, where that is what is measured; None for a plain DataLoader.
        leaves_traces: Whether reading in the process itself leaves threads or open files, which workers would inherit.
        fixed_settings: Settings that the loader or the dataset decides, with their values.
        loader_decides: Those of them that the user's own loader decides, and cannot be given.
        ends_with_sampler: Whether an epoch of the loader ends when its sampler does.
        multiprocessing_context: Start method the workload brings along; None is the interpreter's default.
        accelerator: None on the CPU.
        gpu_room_bytes: Device memory that this process holds or could still get when the probe began; 0 on the CPU.
        pinning: Whether pin_memory has an effect on the device in use.
        worker_start_cost: Seconds from starting so many workers to their first samples, loading itself left out.
        first_use_seconds: CPU time that each worker of a fresh process's first epoch spends on what the training
            process has never done (lazy imports, caches); workers forked from a warm process inherit it.
        manager_seconds: The same for starting torch's shared-memory manager with the `file_system` strategy.
        rss_bytes: Resident memory of the child after loading the workload.
        worker_failure: How the process hung or died when workers were looked at; None when they worked.
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
    costly_lines: tuple[CostlyLine, ...] = ()
    differing_samples: BoundedCount = 0
    worker_threads_cpu: BoundedRate = 0.0
    worker_bytes: BoundedBytes = 0
    shards: BoundedCount | None = None
    baseline: LoaderConfig | None = None
    loader_class: LongText | None = None
    leaves_traces: bool = False
    fixed_settings: dict[SettingName, int | bool | None] = Field(default_factory=dict)
    loader_decides: tuple[SettingName, ...] = ()
    ends_with_sampler: bool = True
    multiprocessing_context: StartMethod | None = None
    software: Software
    accelerator: Accelerator | None = None
    gpu_room_bytes: BoundedBytes = 0
    pinning: bool = False
    worker_start_cost: LinearCost = LinearCost(fixed_seconds=0.0, per_item_seconds=0.02)
    first_use_seconds: BoundedSeconds = 0.0
    manager_seconds: BoundedSeconds = 0.0
    rss_bytes: BoundedBytes = 0
    worker_failure: LongText | None = None
    notes: tuple[LongText, ...] = ()

    def share(self, processes: int) -> WorkloadProfile:
        """Give what one of so many training processes goes through, where they share the data out."""
        counted = ("samples", "epoch_batches", "shards")
        wholes = {name: getattr(self, name) for name in counted}
        return self.model_copy(
            update={name: -(-whole // processes) for name, whole in wholes.items() if whole is not None}
        )
