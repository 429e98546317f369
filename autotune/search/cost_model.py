"""Predicts what a configuration would reach, from what the probe measured.

The model is the simplest that tells waiting from computing. Four things bound the pace, each by itself: the training
process (step, and taking batches over), the workers' waiting, the CPUs that all of them share, and the turn-over
between epochs. It need not be right, only good enough to point at where to look first: trials correct it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import Bottleneck
from autotune.system.machine import count_whole_cpus
from autotune.trial.workload_profile import WorkloadProfile

MAIN_TRANSFER_SHARE: Final = 0.5  # of a batch's transfer is spent in the training process, the rest in the worker
EXTRA_WORKERS: Final = 2
STEP_BOUND_WAIT_FRACTION: Final = 0.1  # share of a run that is spent waiting for data where the step decides
MIN_THROUGHPUT: Final = 1e-9  # samples per second of an epoch without a batch
WORKER_HEADROOM_FACTOR: Final = 2  # workers offered to the search per worker that the model thinks useful


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds per batch that each part would need if it alone bounded the run."""

    training: float  # the training process and its device: taking the batch over, copying it, the step
    waiting: float  # the workers, taking turns
    computing: float  # the CPUs, shared by workers and training process

    @property
    def batch_seconds(self) -> float:
        """The slowest part decides."""
        return max(self.training, self.waiting, self.computing, 1e-7)


def predict_stage_times(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> StageTimes:
    """Predict the steady pace; without workers everything happens in turn in the training process."""
    size = config.dataloader.batch_size or workload.probe_batch_size
    workers = config.dataloader.num_workers
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
    if workers == 0:
        return StageTimes(training=_predict_training(config, workload, load), waiting=0.0, computing=0.0)
    transfer = workload.transfer_cost.per_batch(size)
    busy = load * workload.cpu_share + transfer + step * workload.step_cpus
    return StageTimes(
        training=_predict_training(config, workload, MAIN_TRANSFER_SHARE * transfer),
        waiting=(load + transfer) / workers,
        computing=busy / usable_cpus,
    )


def _predict_training(config: LoaderConfig, workload: WorkloadProfile, host: float) -> float:
    """Predict the seconds a batch takes from the loader through the step.

    On the CPU one thing comes after the other. A device computes while the host gets the next batch, but a copy from
    pageable memory keeps both, and one from pinned memory on the step's own stream keeps the device.
    """
    step = workload.step_cost.per_batch(config.dataloader.batch_size or workload.probe_batch_size)
    if workload.h2d is None:
        return host + step
    copy = predict_copy(config, workload)
    if not config.dataloader.pin_memory:
        return copy + max(host, step)
    hidden = workload.h2d.overlap * min(copy, step) if config.process.device_prefetch else 0.0
    return max(host, copy + step - hidden)


def predict_copy(config: LoaderConfig, workload: WorkloadProfile) -> float:
    """Predict the seconds that copying one batch to the device takes; 0 where nothing is copied."""
    if workload.h2d is None:
        return 0.0
    size = config.dataloader.batch_size or workload.probe_batch_size
    return size * workload.sample_bytes / workload.h2d.of(pinned=config.dataloader.pin_memory)


def predict_samples_per_second(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, epochs: int
) -> float:
    """Predict the throughput of a training run of so many epochs; it is greater than zero."""
    size = config.dataloader.batch_size or workload.probe_batch_size
    steady = predict_stage_times(config, workload, usable_cpus).batch_seconds
    batches = count_epoch_batches(workload, size)
    if batches is None:
        return size / steady
    if batches == 0:
        return MIN_THROUGHPUT
    workers = config.dataloader.num_workers
    start = workload.worker_start_cost.per_batch(workers) if workers else 0.0
    fill = workload.load_cost.per_batch(size) if workers else 0.0
    cold = predict_cold_start_seconds(config, workload, usable_cpus)
    starts = 1 if config.dataloader.persistent_workers else epochs
    total = max(epochs * (batches * steady + fill) + starts * start + cold, 1e-9)
    return epochs * batches * size / total


def predict_cold_start_seconds(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> float:
    """Predict what the first epoch of a fresh process costs beyond that of a warm one; 0 without workers.

    The workers of the first epoch import and cache by themselves what a warm process has long imported. With the
    `file_system` strategy each starts a shared-memory manager of its own as well: measured with torch 2.13 on two
    CPUs, 1.1 to 1.3 s for 10 to 12 workers, a sixth of a ten-epoch run of 512 samples.
    """
    workers = config.dataloader.num_workers
    if not workers:
        return 0.0
    managers = workload.manager_seconds if config.process.sharing_strategy == "file_system" else 0.0
    return (workload.first_use_seconds + managers) * max(1.0, workers / usable_cpus)


def count_epoch_batches(workload: WorkloadProfile, batch_size: int) -> int | None:
    """Count the batches of an epoch; None when the length of the data is not known."""
    if workload.epoch_batches is not None:
        return workload.epoch_batches
    if workload.samples is None:
        return None
    whole, rest = divmod(workload.samples, batch_size)
    return whole + (1 if rest and not workload.drop_last else 0)


def max_useful_workers(workload: WorkloadProfile, batch_size: int, usable_cpus: float) -> int:
    """Give about twice the workers that the model thinks useful, at least the CPUs plus two.

    Samples that compute saturate the CPUs with about as many workers; samples that wait want as many workers as it
    takes to hide the waiting.
    """
    load = max(workload.load_cost.per_batch(batch_size), 1e-7)
    step = max(workload.step_cost.per_batch(batch_size), 1e-7)
    cpu_seconds = max(load * min(1.0, workload.cpu_share) / usable_cpus, 1e-7)
    useful = load / max(step, cpu_seconds)
    return max(count_whole_cpus(usable_cpus), math.ceil(WORKER_HEADROOM_FACTOR * useful)) + EXTRA_WORKERS


def find_bottleneck(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, wait_share: float
) -> Bottleneck:
    """Name what bounds a measured run, which spent a share of its time waiting for data.

    `copy` is from host to device, `cpu` workers computing, `io` workers waiting on storage, `transfer` handing batches
    over, `epoch` starting and refilling at every epoch.
    """
    if _is_bound_by_copies(config, workload, usable_cpus):
        return "copy"
    if wait_share < STEP_BOUND_WAIT_FRACTION:
        return "step"
    size = config.dataloader.batch_size or workload.probe_batch_size
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
    if config.dataloader.num_workers == 0:
        return "step" if wait_share < 0.5 else ("cpu" if workload.cpu_share > 0.5 else "io")
    stages = predict_stage_times(config, workload, usable_cpus)
    if stages.batch_seconds <= stages.training:
        return "epoch" if stages.training < 2 * step else "transfer"
    if stages.computing < stages.waiting:
        return "io" if workload.cpu_share < 0.5 else "cpu"
    return "transfer" if workload.transfer_cost.per_batch(size) > load * workload.cpu_share else "cpu"


def _is_bound_by_copies(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> bool:
    """Tell whether copying takes longer than the step, and the rest of the loader keeps up with it."""
    copy = predict_copy(config, workload)
    stages = predict_stage_times(config, workload, usable_cpus)
    step = workload.step_cost.per_batch(config.dataloader.batch_size or workload.probe_batch_size)
    return copy > max(step, stages.waiting, stages.computing)
