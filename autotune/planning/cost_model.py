"""Cost model: predicts the throughput of a configuration from the profile of the workload.

Throughput is limited by the main process (receiving and copying batches, the step), by the time that workers wait, by
the CPUs that all processes share, and by the restart at every epoch. Trials correct the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import Bottleneck
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.system.machine import count_whole_cpus

MAIN_TRANSFER_SHARE: Final = 0.5  # of a batch's transfer is spent in the main process, the rest in the worker
EXTRA_WORKERS: Final = 2
COMPUTE_BOUND_WAIT_SHARE: Final = 0.1  # below this share of time spent waiting for data the step is the bottleneck
MIN_THROUGHPUT: Final = 1e-9  # samples per second of an epoch without a batch
WORKER_HEADROOM_FACTOR: Final = 2  # searched workers per worker that the model predicts to be useful


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds per batch of each stage alone: main process with its device, waiting workers, shared CPUs."""

    training: float
    waiting: float = 0.0
    computing: float = 0.0

    @property
    def batch_seconds(self) -> float:
        """Seconds per batch of the slowest stage."""
        return max(self.training, self.waiting, self.computing, 1e-7)


def predict_stage_times(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> StageTimes:
    """Predict the steady state; without workers the main process does everything sequentially."""
    size, workers = batch_samples(config, workload), config.dataloader.num_workers
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
    transfer = workload.transfer_cost.per_batch(size) if workers else 0.0
    host, copy = MAIN_TRANSFER_SHARE * transfer if workers else load, predict_copy(config, workload)
    if workload.h2d is None:
        training = host + step
    elif not config.dataloader.pin_memory:  # the copy blocks the host and the device
        training = copy + max(host, step)
    elif config.process.device_prefetch:  # the copy is on a stream of its own
        training = max(host, copy, step)
    else:
        training = max(host, copy + step)
    if not workers:
        return StageTimes(training)
    busy = load * workload.cpu_share + transfer + step * workload.step_cpus
    return StageTimes(training, waiting=(load + transfer) / workers, computing=busy / usable_cpus)


def batch_samples(config: LoaderConfig, workload: WorkloadProfile) -> int:
    """Return the samples in a batch; the mean if the workload makes its own batches."""
    return config.dataloader.batch_size or workload.probe_batch_size


def predict_copy(config: LoaderConfig, workload: WorkloadProfile) -> float:
    """Predict the seconds of copying one batch to the device; 0 on the CPU."""
    if workload.h2d is None:
        return 0.0
    copied_bytes = batch_samples(config, workload) * workload.sample_bytes
    return copied_bytes / workload.h2d.of(pinned=config.dataloader.pin_memory)


def predict_samples_per_second(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, epochs: int
) -> float:
    """Predict the throughput of a training run of `epochs` epochs; it is greater than zero."""
    size, workers = batch_samples(config, workload), config.dataloader.num_workers
    steady = predict_stage_times(config, workload, usable_cpus).batch_seconds
    batches = count_epoch_batches(workload, size)
    if batches is None:
        return size / steady
    if batches == 0:
        return MIN_THROUGHPUT
    start = workload.worker_start_cost.per_batch(workers) if workers else 0.0
    fill = workload.load_cost.per_batch(size) if workers else 0.0
    starts = 1 if config.dataloader.persistent_workers else epochs
    return epochs * batches * size / max(epochs * (batches * steady + fill) + starts * start, 1e-9)


def count_epoch_batches(workload: WorkloadProfile, batch_size: int) -> int | None:
    """Return the batches of an epoch; None if the length of the data is unknown."""
    if workload.epoch_batches is not None or workload.samples is None:
        return workload.epoch_batches
    whole, rest = divmod(workload.samples, batch_size)
    return whole + (1 if rest and not workload.drop_last else 0)


def max_useful_workers(workload: WorkloadProfile, batch_size: int, usable_cpus: float) -> int:
    """Return about twice the workers that the model predicts to be useful, at least the CPUs plus two."""
    load, step = (max(cost.per_batch(batch_size), 1e-7) for cost in (workload.load_cost, workload.step_cost))
    useful = load / max(step, load * min(1.0, workload.cpu_share) / usable_cpus, 1e-7)
    return max(count_whole_cpus(usable_cpus), math.ceil(WORKER_HEADROOM_FACTOR * useful)) + EXTRA_WORKERS


def find_bottleneck(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, wait_share: float
) -> Bottleneck:
    """Return the bottleneck of a run that spent this share of its time waiting for data."""
    size, stages = batch_samples(config, workload), predict_stage_times(config, workload, usable_cpus)
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
    if predict_copy(config, workload) > max(step, stages.waiting, stages.computing):
        return "copy"
    if wait_share < COMPUTE_BOUND_WAIT_SHARE:
        return "step"
    if config.dataloader.num_workers == 0:
        return "step" if wait_share < 0.5 else ("cpu" if workload.cpu_share > 0.5 else "io")
    if stages.batch_seconds <= stages.training:
        return "epoch" if stages.training < 2 * step else "transfer"
    if stages.computing < stages.waiting:
        return "io" if workload.cpu_share < 0.5 else "cpu"
    return "transfer" if workload.transfer_cost.per_batch(size) > load * workload.cpu_share else "cpu"
