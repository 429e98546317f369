"""Predicts the peak resource use of a configuration, so that one that exceeds a limit is rejected before it runs.

Batches of workers pass through /dev/shm. At most `num_workers * prefetch_factor + 2` of them exist at once; with the
`file_descriptor` strategy each tensor also holds a descriptor. Peaks of trials correct the memory of the processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from autotune.config import LoaderConfig
from autotune.planning.cost_model import batch_samples
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
        return "; ".join(
            f"{one.label}: {one.format(needed)} needed of {one.format(limit)}"
            for one, needed, limit in self._compare(budgets)
            if needed > limit
        )

    def constraints(self, budgets: Budgets) -> dict[str, float]:
        """Return Optuna's constraints: the excess over each limit as a share of it, negative below the limit."""
        return {resource.name: needed / max(1, limit) - 1 for resource, needed, limit in self._compare(budgets)}

    def _compare(self, budgets: Budgets) -> list[tuple[Resource, int, float]]:
        limits = [(one, getattr(budgets, one.budget)) for one in RESOURCES]
        return [(one, getattr(self, one.demand), math.inf if limit is None else limit) for one, limit in limits]


@dataclass(frozen=True, slots=True)
class ResourceModel:
    """Predicts the resource use of configurations; `learn` returns a corrected model.

    `peaks` is the memory of the processes in trials that used more than predicted, by the number of workers.
    """

    workload: WorkloadProfile
    peaks: Mapping[int, int] = field(default_factory=dict)
    gpu_extra_bytes: int = 0

    def predict(self, config: LoaderConfig) -> ResourceDemand:
        """Predict the peak resource use of a configuration, for the whole process tree."""
        workers, (batch, pinned) = config.dataloader.num_workers, self._batch_bytes(config)
        gpu = self.gpu_extra_bytes
        if self.workload.gpu_bytes != LinearBytes():
            ahead = 2 * batch if config.process.device_prefetch else 0
            gpu += self.workload.gpu_bytes.per_batch(batch_samples(config, self.workload)) + ahead
        if workers == 0:
            return ResourceDemand(self.workload.rss_bytes + 2 * (batch + pinned), 0, PROCESS_FILES, gpu)
        live = count_live_batches(config)
        memory = self._predict_processes(workers) + workers * batch + live * max(batch, pinned)
        held = live * self.workload.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return ResourceDemand(memory, live * batch, PROCESS_FILES + FILES_PER_WORKER * workers + held, gpu)

    def fits(self, config: LoaderConfig, budgets: Budgets) -> bool:
        """Return whether a configuration is predicted to keep all limits."""
        return not self.predict(config).describe_excess(budgets)

    def learn(self, config: LoaderConfig, host_bytes: int, shm_bytes: int, gpu_bytes: int = 0) -> ResourceModel:
        """Return a model that predicts at least these peaks of a trial; 0 is an unknown peak."""
        workers, (batch, pinned) = config.dataloader.num_workers, self._batch_bytes(config)
        beyond = max(0, gpu_bytes - self.predict(config).gpu_bytes)
        processes = host_bytes - max(shm_bytes, count_live_batches(config) * pinned) - workers * batch
        is_more = workers and host_bytes and processes > self._predict_processes(workers)
        peaks = {**self.peaks, workers: processes} if is_more else self.peaks
        return replace(self, peaks=peaks, gpu_extra_bytes=self.gpu_extra_bytes + beyond)

    def _predict_processes(self, workers: int) -> int:
        """Predict the memory of main process and workers without batches, as a base and a share per worker.

        Of the pairs that explain every peak, take the one that exceeds the peaks least, then the one that predicts
        least: a low prediction costs a trial, a high one excludes configurations for good.
        """
        least = max(WORKER_BYTES, self.workload.worker_bytes)
        points = [(0, self.workload.rss_bytes), *self.peaks.items()]
        rises = [(more - less) // (many - few) for few, less in points for many, more in points if many > few]
        shares = [least, *(rise for rise in rises if rise > least)]
        pairs = [(share, max(peak - count * share for count, peak in points)) for share in shares]
        return min((len(self.peaks) * b + sum(self.peaks) * share, b + workers * share) for share, b in pairs)[1]

    def _batch_bytes(self, config: LoaderConfig) -> tuple[int, int]:
        """Return the bytes of a batch in shared memory and in page-locked memory.

        Each tensor is rounded up to pages. For page-locked memory torch rounds it up to a power of two.
        """
        data = batch_samples(config, self.workload) * self.workload.sample_bytes
        tensors = max(1, self.workload.batch_tensors)
        if not data:
            return 0, 0
        is_pinned = self.workload.pinning and config.dataloader.pin_memory
        pinned = tensors * (1 << (-(-data // tensors) - 1).bit_length()) if is_pinned else 0
        return (-(-data // PAGE_BYTES) + tensors) * PAGE_BYTES, pinned


def count_live_batches(config: LoaderConfig) -> int:
    """Return the number of batches that can be in shared memory at once."""
    return config.dataloader.num_workers * (config.dataloader.prefetch_factor or 0) + 2
