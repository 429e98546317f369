"""What a configuration would need at its peak: one that goes over a budget is rejected before it can do harm.

A worker's batches travel through /dev/shm. At most `num_workers * prefetch_factor + 2` of them exist at
once, each tensor rounded up to pages; with the `file_descriptor` strategy each tensor also holds a
descriptor in the training process. What trials measure corrects the share that cannot be read off:
the memory that training process and workers take for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

from autotune.config import LoaderConfig
from autotune.trial.budgets import Budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.resources import RESOURCES, Resource
from autotune.trial.workload_profile import LinearBytes, WorkloadProfile

PAGE_BYTES: Final = 4096
WORKER_BYTES: Final = 24 * 2**20  # private memory of an idle forked worker, torch 2.13: 15 to 25 MiB
PROCESS_FILES: Final = 64  # interpreter, libraries, the user's own; measured 30 to 50
FILES_PER_WORKER: Final = 6  # queue, sentinel and resource-sharer ends per worker in the parent


@dataclass(frozen=True, slots=True)
class BudgetViolation:
    """One budget that a configuration would go over, in the unit of the resource."""

    resource: Resource
    needed: float
    limit: float

    def describe(self) -> str:
        """Say it with the number against the limit."""
        write = self.resource.format
        return f"{self.resource.label}: {write(self.needed)} needed of {write(self.limit)}"


def describe_violations(violations: Iterable[BudgetViolation]) -> str:
    """Say which limits a configuration would break."""
    return "; ".join(violation.describe() for violation in violations)


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """What a configuration is expected to use at its peak."""

    memory_bytes: int
    shm_bytes: int
    files: int
    gpu_bytes: int = 0

    def find_violations(self, budgets: Budgets) -> tuple[BudgetViolation, ...]:
        """List the limits that this demand breaks."""
        found = (BudgetViolation(resource, *pair) for resource, pair in self._pair(budgets).items())
        return tuple(violation for violation in found if violation.needed > violation.limit)

    def constraints(self, budgets: Budgets) -> dict[str, float]:
        """Give Optuna's constraints: how far over (positive) or under each limit, as a share of it."""
        pairs = self._pair(budgets)
        return {
            resource.name: pairs[resource][0] / max(1, pairs[resource][1]) - 1 if resource in pairs else -1.0
            for resource in RESOURCES
        }

    def _pair(self, budgets: Budgets) -> dict[Resource, tuple[int, int]]:
        """Give demand and budget of each resource that has a budget."""
        allowed = {resource: getattr(budgets, resource.budget) for resource in RESOURCES}
        return {
            resource: (getattr(self, resource.demand), budget)
            for resource, budget in allowed.items()
            if budget is not None
        }


@dataclass(frozen=True, slots=True)
class OwnPeak:
    """What the processes of a trial used at their peak, the batches left out: the training process, and its workers."""

    workers: int
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceModel:
    """Predicts a configuration's demand; `learn` returns a better one.

    Attributes:
        base_bytes: Memory of the training process itself, at least.
        worker_bytes: Private memory of one worker, at least.
        peaks: Of trials that used more than was predicted, one for each number of workers.
        sample_bytes: Bytes of tensors per sample.
        batch_tensors: Tensors in a batch.
        probe_batch_size: Batch size when the configuration leaves batching to the user's code.
        pinning: Whether pin_memory has an effect on the device in use.
        gpu_bytes: Device memory that the allocator holds for a step.
    """

    base_bytes: int
    worker_bytes: int = WORKER_BYTES
    peaks: tuple[OwnPeak, ...] = ()
    sample_bytes: int
    batch_tensors: int
    probe_batch_size: int
    pinning: bool = False
    gpu_bytes: LinearBytes = field(default_factory=LinearBytes)

    @classmethod
    def from_workload(cls, workload: WorkloadProfile) -> Self:
        """Start from what the probe saw."""
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
        """Predict the peak demand of a configuration, for the whole process tree."""
        loader = config.dataloader
        batch_bytes = self._batch_bytes(config)
        gpu_bytes = self._predict_gpu(config, batch_bytes)
        if loader.num_workers == 0:
            memory_bytes = self.base_bytes + 2 * (batch_bytes + self._pinned_bytes(config))
            return ResourceDemand(memory_bytes, shm_bytes=0, files=PROCESS_FILES, gpu_bytes=gpu_bytes)
        live = count_live_batches(config)
        shm_bytes = live * batch_bytes
        held = live * self.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return ResourceDemand(
            memory_bytes=self._predict_own(loader.num_workers)
            + loader.num_workers * batch_bytes
            + max(shm_bytes, live * self._pinned_bytes(config)),
            shm_bytes=shm_bytes,
            files=PROCESS_FILES + FILES_PER_WORKER * loader.num_workers + held,
            gpu_bytes=gpu_bytes,
        )

    def _predict_own(self, workers: int) -> int:
        """Predict what training process and workers use beside the batches.

        Of all pairs of a base and a share for each worker that account for every peak, the one that exceeds them least.
        One peak alone does not tell the two apart; then it is the pair that predicts least: a prediction that is too
        low costs a trial, one that is too high rules out what nobody will try.
        """
        bases = {share: self._explain_peaks(share) for share in self._list_shares()}
        shown = sum(peak.workers for peak in self.peaks)
        _, own_bytes = min(
            (len(self.peaks) * base + shown * share, base + workers * share) for share, base in bases.items()
        )
        return own_bytes

    def _explain_peaks(self, share: int) -> int:
        """Give the base that accounts for every peak where each worker takes so much."""
        return max([self.base_bytes, *(peak.own_bytes - peak.workers * share for peak in self.peaks)])

    def _list_shares(self) -> list[int]:
        """List what a worker may take: the least, and the rises from any peak to any other, and to the base."""
        points = [(0, self.base_bytes), *((peak.workers, peak.own_bytes) for peak in self.peaks)]
        rises = [(more - less) // (many - few) for few, less in points for many, more in points if many > few]
        return [self.worker_bytes, *(rise for rise in rises if rise > self.worker_bytes)]

    def _pinned_bytes(self, config: LoaderConfig) -> int:
        """Give the page-locked memory of a batch; torch rounds each block up to a power of two and keeps it."""
        if not self.pinning or not config.dataloader.pin_memory or not self.sample_bytes:
            return 0
        tensors = max(1, self.batch_tensors)
        return tensors * _round_up_to_power(-(-self._batch_size(config) * self.sample_bytes // tensors))

    def _predict_gpu(self, config: LoaderConfig, batch_bytes: int) -> int:
        ahead = 2 * batch_bytes if config.process.device_prefetch else 0
        return self.gpu_bytes.per_batch(self._batch_size(config)) + ahead if self.gpu_bytes != LinearBytes() else 0

    def _batch_bytes(self, config: LoaderConfig) -> int:
        pages = -(-self._batch_size(config) * self.sample_bytes // PAGE_BYTES)
        return (pages + max(1, self.batch_tensors)) * PAGE_BYTES if self.sample_bytes else 0  # each tensor rounded up

    def _batch_size(self, config: LoaderConfig) -> int:
        return config.dataloader.batch_size or self.probe_batch_size

    def learn(self, result: TrialResult) -> ResourceModel:
        """Give a model that would have predicted at least the memory that a trial with workers used."""
        return self._learn_gpu(result)._learn_own(result)

    def _learn_gpu(self, result: TrialResult) -> ResourceModel:
        """Raise what a step needs in any case, by what a trial held beyond the prediction."""
        used = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
        beyond = used - self.predict(result.config).gpu_bytes
        if beyond <= 0:
            return self
        fixed_bytes = self.gpu_bytes.fixed_bytes + beyond
        return replace(self, gpu_bytes=self.gpu_bytes.model_copy(update={"fixed_bytes": fixed_bytes}))

    def _learn_own(self, result: TrialResult) -> ResourceModel:
        workers = result.config.dataloader.num_workers
        if not workers or not result.peak_host_bytes:
            return self
        pinned = count_live_batches(result.config) * self._pinned_bytes(result.config)
        shared = max(result.peak_shm_bytes, pinned) + workers * self._batch_bytes(result.config)
        peak = OwnPeak(workers, max(0, result.peak_host_bytes - shared))
        if peak.own_bytes <= self._predict_own(workers):
            return self
        others = (other for other in self.peaks if other.workers != workers)
        return replace(self, peaks=(*others, peak))


def _round_up_to_power(size: int) -> int:
    """Round up to a power of two."""
    return 1 << (size - 1).bit_length() if size > 1 else size


def count_live_batches(config: LoaderConfig) -> int:
    """Count the batches that can lie in shared memory at once."""
    loader = config.dataloader
    return loader.num_workers * (loader.prefetch_factor or 0) + 2
