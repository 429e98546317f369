"""Predicts the peak resource use of a configuration, so that one that exceeds a limit is rejected before it runs.

Batches of workers pass through /dev/shm. At most `num_workers * prefetch_factor + 2` of them exist at once, each tensor
rounded up to pages; with the `file_descriptor` strategy each tensor also holds a descriptor in the main process. The
memory of the main process and the workers themselves is corrected by the peaks of trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from autotune.config import LoaderConfig
from autotune.trial.budgets import Budgets
from autotune.trial.resources import RESOURCES, Resource
from autotune.trial.workload_profile import LinearBytes, WorkloadProfile

PAGE_BYTES: Final = 4096
WORKER_BYTES: Final = 24 * 2**20  # private memory of an idle forked worker, torch 2.13: 15 to 25 MiB
PROCESS_FILES: Final = 64  # interpreter, libraries, the user's own; measured 30 to 50
FILES_PER_WORKER: Final = 6  # queue, sentinel and resource-sharer ends per worker in the parent


@dataclass(frozen=True, slots=True)
class BudgetViolation:
    """A limit that a configuration would exceed, in the unit of the resource."""

    resource: Resource
    needed: float
    limit: float

    def describe(self) -> str:
        """Describe it with the number against the limit."""
        write = self.resource.format
        return f"{self.resource.label}: {write(self.needed)} needed of {write(self.limit)}"


def describe_violations(violations: Iterable[BudgetViolation]) -> str:
    """Describe the limits that a configuration would exceed."""
    return "; ".join(violation.describe() for violation in violations)


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """Predicted peak resource use of a configuration."""

    memory_bytes: int
    shm_bytes: int
    files: int
    gpu_bytes: int = 0

    def find_violations(self, budgets: Budgets) -> tuple[BudgetViolation, ...]:
        """Return the limits that it exceeds."""
        found = (BudgetViolation(resource, *pair) for resource, pair in self._pair(budgets).items())
        return tuple(violation for violation in found if violation.needed > violation.limit)

    def constraints(self, budgets: Budgets) -> dict[str, float]:
        """Return Optuna's constraints: the excess over each limit as a share of it, negative below the limit."""
        pairs = self._pair(budgets)
        return {
            resource.name: pairs[resource][0] / max(1, pairs[resource][1]) - 1 if resource in pairs else -1.0
            for resource in RESOURCES
        }

    def _pair(self, budgets: Budgets) -> dict[Resource, tuple[int, int]]:
        """Return demand and limit of each resource that has a limit."""
        limits = {resource: getattr(budgets, resource.budget) for resource in RESOURCES}
        return {
            resource: (getattr(self, resource.demand), limit) for resource, limit in limits.items() if limit is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceModel:
    """Predicts the resource use of configurations; `learn` returns a corrected model.

    Attributes:
        base_bytes: Memory of the main process, at least.
        worker_bytes: Private memory of one worker, at least.
        peaks: Memory of the processes alone, without batches, in trials that used more than predicted; by the number
            of workers.
        sample_bytes: Bytes of tensors per sample.
        batch_tensors: Tensors in a batch.
        probe_batch_size: Batch size of configurations that leave batching to the training code.
        pinning: Whether pin_memory has an effect on the device.
        gpu_bytes: Device memory that the allocator holds for a step.
    """

    base_bytes: int
    worker_bytes: int = WORKER_BYTES
    peaks: Mapping[int, int] = field(default_factory=dict)
    sample_bytes: int
    batch_tensors: int
    probe_batch_size: int
    pinning: bool = False
    gpu_bytes: LinearBytes = field(default_factory=LinearBytes)

    @classmethod
    def from_workload(cls, workload: WorkloadProfile) -> Self:
        """Start from the profile of the workload."""
        return cls(
            base_bytes=workload.rss_bytes,
            worker_bytes=max(WORKER_BYTES, workload.worker_bytes),
            sample_bytes=workload.sample_bytes,
            batch_tensors=workload.batch_tensors,
            probe_batch_size=workload.probe_batch_size,
            pinning=workload.pinning,
            gpu_bytes=workload.gpu_bytes,
        )

    def predict(self, config: LoaderConfig) -> ResourceDemand:
        """Predict the peak resource use of a configuration, for the whole process tree."""
        workers, batch_bytes = config.dataloader.num_workers, self._batch_bytes(config)
        gpu_bytes = self._predict_gpu(config, batch_bytes)
        if workers == 0:
            memory_bytes = self.base_bytes + 2 * (batch_bytes + self._pinned_bytes(config))
            return ResourceDemand(memory_bytes, shm_bytes=0, files=PROCESS_FILES, gpu_bytes=gpu_bytes)
        live = count_live_batches(config)
        shm_bytes = live * batch_bytes
        held = live * self.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return ResourceDemand(
            memory_bytes=self._predict_processes(workers)
            + workers * batch_bytes
            + max(shm_bytes, live * self._pinned_bytes(config)),
            shm_bytes=shm_bytes,
            files=PROCESS_FILES + FILES_PER_WORKER * workers + held,
            gpu_bytes=gpu_bytes,
        )

    def _predict_processes(self, workers: int) -> int:
        """Predict the memory of main process and workers without batches.

        Of all pairs of a base and a share per worker that explain every peak, take the pair that exceeds the peaks
        least, then the one that predicts least: a prediction that is too low costs a trial, one that is too high
        excludes configurations that nobody will try. One peak alone cannot separate the base from the shares.
        """
        points = [(0, self.base_bytes), *self.peaks.items()]
        rises = [(more - less) // (many - few) for few, less in points for many, more in points if many > few]
        shares = [self.worker_bytes, *(rise for rise in rises if rise > self.worker_bytes)]
        bases = [max(peak - count * share for count, peak in points) for share in shares]
        _, predicted = min(
            (len(self.peaks) * base + sum(self.peaks) * share, base + workers * share)
            for share, base in zip(shares, bases, strict=True)
        )
        return predicted

    def _pinned_bytes(self, config: LoaderConfig) -> int:
        """Return the page-locked memory of a batch; torch rounds each block up to a power of two and keeps it."""
        if not self.pinning or not config.dataloader.pin_memory or not self.sample_bytes:
            return 0
        tensors = max(1, self.batch_tensors)
        block_bytes = -(-self._batch_size(config) * self.sample_bytes // tensors)
        return tensors * (1 << (block_bytes - 1).bit_length())

    def _predict_gpu(self, config: LoaderConfig, batch_bytes: int) -> int:
        ahead = 2 * batch_bytes if config.process.device_prefetch else 0
        return self.gpu_bytes.per_batch(self._batch_size(config)) + ahead if self.gpu_bytes != LinearBytes() else 0

    def _batch_bytes(self, config: LoaderConfig) -> int:
        pages = -(-self._batch_size(config) * self.sample_bytes // PAGE_BYTES)
        return (pages + max(1, self.batch_tensors)) * PAGE_BYTES if self.sample_bytes else 0  # each tensor rounded up

    def _batch_size(self, config: LoaderConfig) -> int:
        return config.dataloader.batch_size or self.probe_batch_size

    def learn(self, config: LoaderConfig, host_bytes: int, shm_bytes: int, gpu_bytes: int = 0) -> ResourceModel:
        """Return a model that predicts at least these peaks of a trial; 0 is an unknown peak."""
        model = self
        if (beyond := gpu_bytes - self.predict(config).gpu_bytes) > 0:
            fixed_bytes = self.gpu_bytes.fixed_bytes + beyond
            model = replace(model, gpu_bytes=self.gpu_bytes.model_copy(update={"fixed_bytes": fixed_bytes}))
        workers = config.dataloader.num_workers
        if workers and host_bytes:
            pinned = count_live_batches(config) * self._pinned_bytes(config)
            own_bytes = host_bytes - max(shm_bytes, pinned) - workers * self._batch_bytes(config)
            if own_bytes > self._predict_processes(workers):
                model = replace(model, peaks={**self.peaks, workers: own_bytes})
        return model


def count_live_batches(config: LoaderConfig) -> int:
    """Return the number of batches that can be in shared memory at once."""
    loader = config.dataloader
    return loader.num_workers * (loader.prefetch_factor or 0) + 2
