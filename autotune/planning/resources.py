"""Predicts the peak resource use of a configuration, so that one that exceeds a limit is rejected before it runs.

Batches of workers pass through /dev/shm. At most `num_workers * prefetch_factor + 2` of them exist at once, each tensor
rounded up to pages; with the `file_descriptor` strategy each tensor also holds a descriptor in the main process. Peaks
of trials correct the memory of the main process and the workers themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from autotune.config import LoaderConfig
from autotune.protocol.budgets import RESOURCES, Budgets, Resource
from autotune.protocol.workload_profile import LinearBytes, WorkloadProfile

PAGE_BYTES: Final = 4096
WORKER_BYTES: Final = 24 * 2**20  # private memory of an idle forked worker, torch 2.13: 15 to 25 MiB
PROCESS_FILES: Final = 64  # interpreter, libraries, the user's own; measured 30 to 50
FILES_PER_WORKER: Final = 6  # queue, sentinel and resource-sharer ends per worker in the parent


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """Predicted peak resource use of a configuration."""

    memory_bytes: int
    shm_bytes: int
    files: int
    gpu_bytes: int = 0

    def describe_excess(self, budgets: Budgets) -> str:
        """Describe the limits that it exceeds, with the number against each; empty if there is none."""
        exceeded = [row for row in self._compare(budgets) if row[1] > row[2]]
        return "; ".join(
            f"{one.label}: {one.format(needed)} needed of {one.format(limit)}" for one, needed, limit in exceeded
        )

    def constraints(self, budgets: Budgets) -> dict[str, float]:
        """Return Optuna's constraints: the excess over each limit as a share of it, negative below the limit."""
        excess = {resource.name: needed / max(1, limit) - 1 for resource, needed, limit in self._compare(budgets)}
        return dict.fromkeys((resource.name for resource in RESOURCES), -1.0) | excess

    def _compare(self, budgets: Budgets) -> list[tuple[Resource, int, int]]:
        rows = [(one, getattr(self, one.demand), getattr(budgets, one.budget)) for one in RESOURCES]
        return [row for row in rows if row[2] is not None]


@dataclass(frozen=True, slots=True)
class ResourceModel:
    """Predicts the resource use of configurations; `learn` returns a corrected model.

    Attributes:
        workload: The profile of the workload.
        peaks: Memory of the processes alone, without batches, in trials that used more than predicted; by the number
            of workers.
        gpu_extra_bytes: Device memory that a trial used in addition to the prediction.
    """

    workload: WorkloadProfile
    peaks: Mapping[int, int] = field(default_factory=dict)
    gpu_extra_bytes: int = 0

    def predict(self, config: LoaderConfig) -> ResourceDemand:
        """Predict the peak resource use of a configuration, for the whole process tree."""
        workers, batch_bytes, pinned = config.dataloader.num_workers, self._batch_bytes(config), self._pinned(config)
        gpu_bytes = self.gpu_extra_bytes
        if self.workload.gpu_bytes != LinearBytes():
            ahead = 2 * batch_bytes if config.process.device_prefetch else 0
            gpu_bytes += self.workload.gpu_bytes.per_batch(self._batch_size(config)) + ahead
        if workers == 0:
            memory_bytes = self.workload.rss_bytes + 2 * (batch_bytes + pinned)
            return ResourceDemand(memory_bytes, shm_bytes=0, files=PROCESS_FILES, gpu_bytes=gpu_bytes)
        live = count_live_batches(config)
        held = live * self.workload.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return ResourceDemand(
            self._predict_processes(workers) + workers * batch_bytes + live * max(batch_bytes, pinned),
            shm_bytes=live * batch_bytes,
            files=PROCESS_FILES + FILES_PER_WORKER * workers + held,
            gpu_bytes=gpu_bytes,
        )

    def fits(self, config: LoaderConfig, budgets: Budgets) -> bool:
        """Return whether a configuration is predicted to keep all limits."""
        return not self.predict(config).describe_excess(budgets)

    def _predict_processes(self, workers: int) -> int:
        """Predict the memory of main process and workers without batches.

        Of all pairs of a base and a share per worker that explain every peak, take the pair that exceeds the peaks
        least, then the one that predicts least: a prediction that is too low costs a trial, one that is too high
        excludes configurations for good. One peak alone cannot separate the base from the shares.
        """
        least = max(WORKER_BYTES, self.workload.worker_bytes)
        points = [(0, self.workload.rss_bytes), *self.peaks.items()]
        rises = [(more - less) // (many - few) for few, less in points for many, more in points if many > few]
        pairs = [
            (share, max(peak - count * share for count, peak in points))
            for share in (least, *(rise for rise in rises if rise > least))
        ]
        return min((len(self.peaks) * b + sum(self.peaks) * share, b + workers * share) for share, b in pairs)[1]

    def _pinned(self, config: LoaderConfig) -> int:
        """Return the page-locked memory of a batch; torch rounds each block up to a power of two and keeps it."""
        if not (self.workload.pinning and config.dataloader.pin_memory and self.workload.sample_bytes):
            return 0
        tensors = max(1, self.workload.batch_tensors)
        return tensors * (1 << (-(-self._batch_size(config) * self.workload.sample_bytes // tensors) - 1).bit_length())

    def _batch_bytes(self, config: LoaderConfig) -> int:
        """Return the shared memory of a batch; each tensor is rounded up to pages."""
        pages = -(-self._batch_size(config) * self.workload.sample_bytes // PAGE_BYTES)
        return (pages + max(1, self.workload.batch_tensors)) * PAGE_BYTES if self.workload.sample_bytes else 0

    def _batch_size(self, config: LoaderConfig) -> int:
        return config.dataloader.batch_size or self.workload.probe_batch_size

    def learn(self, config: LoaderConfig, host_bytes: int, shm_bytes: int, gpu_bytes: int = 0) -> ResourceModel:
        """Return a model that predicts at least these peaks of a trial; 0 is an unknown peak."""
        workers, beyond = config.dataloader.num_workers, max(0, gpu_bytes - self.predict(config).gpu_bytes)
        model = replace(self, gpu_extra_bytes=self.gpu_extra_bytes + beyond) if beyond else self
        shared = max(shm_bytes, count_live_batches(config) * self._pinned(config))
        processes_bytes = host_bytes - shared - workers * self._batch_bytes(config)
        if workers and host_bytes and processes_bytes > self._predict_processes(workers):
            return replace(model, peaks={**self.peaks, workers: processes_bytes})
        return model


def count_live_batches(config: LoaderConfig) -> int:
    """Return the number of batches that can be in shared memory at once."""
    return config.dataloader.num_workers * (config.dataloader.prefetch_factor or 0) + 2
