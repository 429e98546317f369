"""Profile of a workload, as measured by the probe: its identity and the cost of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field

from autotune.config import Count, Fraction, FrozenModel, LoaderConfig, LongText, Rate, StartMethod
from autotune.profiles.schema import Preparer, WorkloadIdentity
from autotune.request import WorkloadRequest
from autotune.settings import SettingName
from autotune.system.machine import Accelerator, Software


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit `fixed + size * slope` to (size, value), by least squares of relative errors, neither part negative."""
    highest = max(value for _, value in points)
    weighted = [(size, value, max(value, 1e-3 * highest, 1e-9) ** -2) for size, value in points]
    weights = math.fsum(weight for *_, weight in weighted)
    mean_size, mean_value = (math.fsum(one[index] * one[2] for one in weighted) / weights for index in (0, 1))
    variance = math.fsum(weight * (size - mean_size) ** 2 for size, _, weight in weighted)
    covariance = math.fsum(weight * (size - mean_size) * value for size, value, weight in weighted)
    slope = max(0.0, covariance / variance) if variance else math.inf  # one size shows no fixed part
    if slope * mean_size <= mean_value:
        return mean_value - slope * mean_size, slope
    squares = math.fsum(weight * size**2 for size, _, weight in weighted)
    return 0.0, math.fsum(weight * size * value for size, value, weight in weighted) / squares


class LinearCost(FrozenModel):
    """Linear model of seconds or bytes: `fixed + size * per_item`; an item is a sample or a worker."""

    fixed: Rate = 0.0
    per_item: Rate = 0.0

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]], *, is_upper_bound: bool = False) -> Self:
        """Fit the costs measured at some sizes; an upper bound is at least each of them."""
        fixed, slope = _fit_line(points)
        lift = max(found - (fixed + slope * size) for size, found in points) if is_upper_bound else 0.0
        return cls(fixed=fixed + max(0.0, lift), per_item=slope)

    def at(self, size: int) -> float:
        """Return the cost of `size` items."""
        return self.fixed + size * self.per_item


class H2DBandwidth(FrozenModel):
    """Bandwidth of copies to the device from pageable and pinned memory, in bytes per second."""

    pageable: Annotated[float, Field(gt=0, le=1e30)]
    pinned: Annotated[float, Field(gt=0, le=1e30)]

    def of(self, *, pinned: bool) -> float:
        """Return the bandwidth from pinned or pageable memory."""
        return self.pinned if pinned else self.pageable


class CostlyLine(FrozenModel):
    """A function of the user's code, by its first line, and its share of the loading time."""

    file: LongText
    line: Count
    source: LongText  # empty if unknown
    share: Fraction


class WorkloadProfile(FrozenModel):
    """Properties and costs of a workload, as the probe measured them."""

    kind: Literal["map", "iterable"]
    samples: Count | None  # in an epoch; None if unknown
    sample_bytes: Count  # of tensors per sample, mean
    sample_bytes_error: Count = 0  # half-width of the 99.9% interval of the mean; 0 if unknown
    is_from_data_module: bool = False  # whether a data module returned the loader
    prepared_by: Preparer | None = None  # what made the loader that the factory returned
    loader_class: LongText | None = None  # class of a custom loader; None for a plain DataLoader
    loader_decides: tuple[SettingName, ...] = ()  # settings that a custom loader decides
    software: Software
    accelerator: Accelerator | None = None
    description: LongText
    counted_samples: Count | None = None  # in an epoch of an iterable dataset; None if an epoch takes long
    epoch_batches: Count | None = None  # in an epoch if the user's code makes the batches; else None
    batching: Literal["batch_size", "user"]  # `user` if a batch sampler or an unbatched dataset makes the batches
    drop_last: bool = False
    probe_batch_size: Annotated[int, Field(ge=1, le=2**63 - 1)]  # the mean of the user's batches
    largest_probed: Count = 0  # batch size; costs of much larger batches are extrapolated
    load_cost: LinearCost  # to load and collate one batch in the training process
    cpu_share: Rate  # CPUs that loading keeps busy: 0 waits, 1 computes, more if it starts threads
    collate_cost: LinearCost = LinearCost()  # part of `load_cost`; 0 if unknown
    transfer_cost: LinearCost = LinearCost(fixed=4e-4)  # of a batch, from a worker
    step_cost: LinearCost  # of the step on a batch that is ready, on the device if there is one
    step_cpus: Rate = 0.0
    step_takes_moved: bool = True  # whether it takes a batch all of which is on the device
    h2d: H2DBandwidth | None = None  # None on the CPU, and if samples are on the device already
    gpu_bytes: LinearCost = LinearCost()  # device memory that the allocator holds for a step
    batch_tensors: Count
    on_accelerator: bool = False
    has_getitems: bool = False
    workers_duplicate_data: bool = False  # whether an iterable dataset delivers everything once per worker
    reads_worker_info: bool = False  # whether the dataset reads the number of its worker, or of all workers
    epoch_state: LongText | None = None  # why the dataset may differ between epochs, as in `dataset.set_epoch()`
    costly_lines: tuple[CostlyLine, ...] = ()  # most of loading in one process, the costliest first
    differing_samples: Count = 0  # compared samples that workers return differently than the training process
    shared_by_workers: str | None = None  # file or connection that forked workers wrongly share
    worker_threads_cpu: Rate = 0.0  # CPU time of a worker's other threads over that of the one that loads
    worker_bytes: Count = 0  # memory of a worker that is not forked; 0 if unknown
    shards: Count | None = None  # that an iterable dataset divides among its workers; None if unknown
    baseline: LoaderConfig | None = None  # settings of the DataLoader the factory returned; None for PyTorch's defaults
    gives_loader: bool = False  # whether the factory returned a plain DataLoader or a Workload with arguments of one
    fixed_settings: dict[SettingName, int | bool | None] = Field(default_factory=dict)  # by the loader or the dataset
    ends_with_sampler: bool = True  # whether an epoch of the loader ends when its sampler does
    multiprocessing_context: StartMethod | None = None  # of the workload; None for Python's default
    gpu_free_bytes: Count = 0  # device memory that the process held or could get at the start; 0 on the CPU
    pinning: bool = False  # whether pin_memory has an effect on the device in use
    worker_start_cost: LinearCost = LinearCost(per_item=0.02)  # includes lazy imports
    rss_bytes: Count = 0  # memory without mapped files of the process that loaded batches itself
    worker_failure: LongText | None = None  # how the process that started workers failed; None if it worked
    notes: tuple[LongText, ...] = ()  # warnings
    loader_note: LongText | None = None  # what is measured, if that is not a plain DataLoader

    def per_rank(self, processes: int) -> WorkloadProfile:
        """Return the profile of one of several training processes that shard the data."""
        totals = {name: getattr(self, name) for name in ("samples", "epoch_batches", "shards")}
        return self.model_copy(update={name: -(-one // processes) for name, one in totals.items() if one is not None})


def identify(request: WorkloadRequest, found: WorkloadProfile) -> WorkloadIdentity:
    """Return the identity of a workload, from its request and its profile."""
    return WorkloadIdentity(
        dataset=request.dataset,
        dataset_args=request.dataset_args,
        split=request.split,
        step=request.describe_step(),
        nproc_per_node=request.nproc_per_node,
        **{name: getattr(found, name) for name in WorkloadIdentity.model_fields if hasattr(found, name)},
    )
