"""Cost model: predicts throughput and peak resource use of a configuration from the profile of the workload.

Throughput is limited by the main process (receiving and copying batches, the step), by the time that workers wait, by
the CPUs that all processes share, and by the restart at every epoch. Batches of workers pass through /dev/shm: at most
`num_workers * prefetch_factor + 2` exist at once, and with the `file_descriptor` strategy each tensor also holds a
descriptor. Trials correct the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import COMPUTE_BOUND_WAIT_SHARE, Bottleneck, Budgets
from autotune.protocol.budgets import RESOURCES
from autotune.protocol.measurement import TrialResult
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.system.machine import count_whole_cpus

MAIN_TRANSFER_SHARE: Final = 0.5  # of a batch's transfer is spent in the main process, the rest in the worker
MANAGER_SECONDS: Final = 0.2  # of CPU time: each `file_system` worker starts a shared-memory manager (torch 2.13)
MIN_THROUGHPUT: Final = 1e-9  # samples per second of an epoch without a batch
PAGE_BYTES: Final = 4096
WORKER_BYTES: Final = 24 * 2**20  # private memory of an idle forked worker, torch 2.13: 15 to 25 MiB
PROCESS_FILES: Final = 64  # interpreter, libraries, the user's own; measured 30 to 50
FILES_PER_WORKER: Final = 6  # queue, sentinel and resource-sharer ends per worker in the parent
THREADED_STEP_CPUS: Final = 1.2  # CPUs that the step keeps busy; above it, it has threads
# Threads of a step that wait for each other spin, and take CPU time from the workers. This costs less the more batches
# are loaded before the first step. Measured on two CPUs, JPEG decoding and a small network: 2 workers 513 samples/s, 16
# workers 672, 2 workers with OMP_WAIT_POLICY=PASSIVE 731.
SPINNING_WORKERS: Final = 16


def predict_stages(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> tuple[float, float, float]:
    """Predict seconds per batch of each stage alone: main process with its device, waiting workers, shared CPUs."""
    size, workers = batch_samples(config, workload), config.dataloader.num_workers
    load, step = workload.load_cost.at(size), workload.step_cost.at(size)
    transfer = workload.transfer_cost.at(size) if workers else 0.0
    host, copy = MAIN_TRANSFER_SHARE * transfer if workers else load, predict_copy(config, workload)
    if workload.h2d is None:
        training = host + step
    elif not config.dataloader.pin_memory:  # the copy blocks the host and the device
        training = copy + max(host, step)
    else:  # the copy is on the stream of the step, unless it is made in advance
        training = max(host, copy, step) if config.process.device_prefetch else max(host, copy + step)
    if not workers:
        return training, 0.0, 0.0
    busy = load * workload.cpu_share + transfer + step * workload.step_cpus
    return training, (load + transfer) / workers, busy / usable_cpus


def batch_samples(config: LoaderConfig, workload: WorkloadProfile) -> int:
    """Return the samples in a batch; the mean if the workload makes its own batches."""
    return config.dataloader.batch_size or workload.probe_batch_size


def predict_copy(config: LoaderConfig, workload: WorkloadProfile) -> float:
    """Predict the seconds of copying one batch to the device; 0 on the CPU."""
    if workload.h2d is None:
        return 0.0
    copied_bytes = batch_samples(config, workload) * workload.sample_bytes
    return copied_bytes / workload.h2d.of(pinned=config.dataloader.pin_memory)


def predict_throughput(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, epochs: int) -> float:
    """Predict the throughput of a training run of `epochs` epochs; it is greater than zero."""
    size, workers = batch_samples(config, workload), config.dataloader.num_workers
    steady = max(1e-7, *predict_stages(config, workload, usable_cpus))
    batches = count_epoch_batches(workload, size)
    if batches is None:
        return size / steady
    if batches == 0:
        return MIN_THROUGHPUT
    start = workload.worker_start_cost.at(workers) if workers else 0.0
    start += MANAGER_SECONDS * workers / usable_cpus if config.process.sharing_strategy == "file_system" else 0.0
    fill = workload.load_cost.at(size) if workers else 0.0
    starts = 1 if config.dataloader.persistent_workers else epochs
    return epochs * batches * size / max(epochs * (batches * steady + fill) + starts * start, 1e-9)


def count_epoch_batches(workload: WorkloadProfile, batch_size: int) -> int | None:
    """Return the batches of an epoch; None if unknown."""
    if workload.epoch_batches is not None or workload.samples is None:
        return workload.epoch_batches
    return workload.samples // batch_size if workload.drop_last else -(-workload.samples // batch_size)


def max_useful_workers(workload: WorkloadProfile, batch_size: int, usable_cpus: float) -> int:
    """Return about twice the workers that the model predicts to be useful, at least the CPUs plus two.

    The model does not know what threads of the step cost that spin, so more workers are possible with such a step. Each
    epoch gives its first batch to the first worker, so that there is no use for more workers than batches.
    """
    load, step = (max(cost.at(batch_size), 1e-7) for cost in (workload.load_cost, workload.step_cost))
    useful = load / max(step, load * min(1.0, workload.cpu_share) / usable_cpus, 1e-7)
    most = max(count_whole_cpus(usable_cpus), math.ceil(2 * useful)) + 2
    most = max(most, SPINNING_WORKERS) if has_spinning_step(workload) else most
    return min(most, max(1, count_epoch_batches(workload, batch_size) or most))


def has_spinning_step(workload: WorkloadProfile) -> bool:
    """Return whether the step has threads on the CPU that spin while they wait, and loading needs CPU time, too."""
    is_spinning = os.environ.get("OMP_WAIT_POLICY", "").lower() != "passive"
    return is_spinning and workload.step_cpus >= THREADED_STEP_CPUS and workload.cpu_share >= 0.5


def is_limited_by_cpus(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> bool:
    """Return whether the model predicts that the CPUs are always busy, so that no worker waits for another."""
    *others, computing = predict_stages(config, workload, usable_cpus)
    return computing >= max(others)


def find_bottleneck(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, wait_share: float, *, has_epochs: bool = True
) -> Bottleneck:
    """Return the bottleneck of a run that spent this share of its time waiting for data.

    `has_epochs` is whether the start of each epoch is part of its throughput.
    """
    training, waiting, computing = predict_stages(config, workload, usable_cpus)
    size = batch_samples(config, workload)
    load, step = workload.load_cost.at(size), workload.step_cost.at(size)
    if predict_copy(config, workload) > max(step, waiting, computing):
        return "copy"
    if wait_share < COMPUTE_BOUND_WAIT_SHARE:
        return "step"
    if config.dataloader.num_workers == 0:
        return "step" if wait_share < 0.5 else ("cpu" if workload.cpu_share > 0.5 else "io")
    if max(training, waiting, computing) <= training:
        if training >= 2 * step:
            return "transfer"
        if has_epochs:
            return "epoch"
    if computing < waiting:
        return "io" if workload.cpu_share < 0.5 else "cpu"
    return "transfer" if workload.transfer_cost.at(size) > load * workload.cpu_share else "cpu"


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """Predicted peak resource use of a configuration."""

    memory_bytes: int
    shm_bytes: int
    files: int
    gpu_bytes: int = 0

    def describe_excess(self, budgets: Budgets) -> str:
        """Describe the limits that it exceeds, with the number against each; empty if there is none."""
        excess, sentences = self.constraints(budgets), list[str]()
        for one in (one for one in RESOURCES if excess[one.name] > 0):
            needed, limit = one.format(getattr(self, one.demand)), one.format(getattr(budgets, one.budget))
            sentences.append(f"{one.label}: {needed} needed of {limit}")
        return "; ".join(sentences)

    def constraints(self, budgets: Budgets) -> dict[str, float]:
        """Return Optuna's constraints: the excess over each limit as a share of it, negative below the limit."""
        pairs = ((one, getattr(self, one.demand), getattr(budgets, one.budget)) for one in RESOURCES)
        return {one.name: -1.0 if limit is None else needed / max(1, limit) - 1 for one, needed, limit in pairs}


@dataclass(frozen=True, slots=True)
class ResourceModel:
    """Predicts the resource use of configurations; `learn` returns a corrected model."""

    workload: WorkloadProfile
    peaks: Mapping[int, int] = field(default_factory=dict)  # bytes of processes that used more, by number of workers
    gpu_extra_bytes: int = 0

    def predict(self, config: LoaderConfig) -> ResourceDemand:
        """Predict the peak resource use of a configuration, for the whole process tree."""
        workers, (live, batch, pinned) = config.dataloader.num_workers, self._batch_bytes(config)
        gpu = self.gpu_extra_bytes
        if self.workload.gpu_bytes != LinearCost():
            ahead = 2 * batch if config.process.device_prefetch else 0
            gpu += math.ceil(self.workload.gpu_bytes.at(batch_samples(config, self.workload))) + ahead
        if workers == 0:
            return ResourceDemand(self.workload.rss_bytes + 2 * (batch + pinned), 0, PROCESS_FILES, gpu)
        memory = self._predict_processes(workers) + workers * batch + live * max(batch, pinned)
        held = live * self.workload.batch_tensors if config.process.sharing_strategy == "file_descriptor" else 0
        return ResourceDemand(memory, live * batch, PROCESS_FILES + FILES_PER_WORKER * workers + held, gpu)

    def learn(self, result: TrialResult) -> ResourceModel:
        """Return a model that predicts at least the peaks of a trial; 0 is an unknown peak."""
        workers, (live, batch, pinned) = result.config.dataloader.num_workers, self._batch_bytes(result.config)
        gpu_bytes = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
        beyond = max(0, gpu_bytes - self.predict(result.config).gpu_bytes)
        processes = result.peak_host_bytes - max(result.peak_shm_bytes, live * pinned) - workers * batch
        is_more = workers and result.peak_host_bytes and processes > self._predict_processes(workers)
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

    def _batch_bytes(self, config: LoaderConfig) -> tuple[int, int, int]:
        """Return the batches that exist at once, and the bytes of one in shared memory and in page-locked memory.

        Each tensor is rounded up to pages. For page-locked memory torch rounds it up to a power of two.
        """
        live = config.dataloader.num_workers * (config.dataloader.prefetch_factor or 0) + 2
        data = batch_samples(config, self.workload) * self.workload.sample_bytes
        tensors = max(1, self.workload.batch_tensors)
        if not data:
            return live, 0, 0
        is_pinned = self.workload.pinning and config.dataloader.pin_memory
        pinned = tensors * (1 << (-(-data // tensors) - 1).bit_length()) if is_pinned else 0
        return live, (-(-data // PAGE_BYTES) + tensors) * PAGE_BYTES, pinned
