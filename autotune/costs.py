"""Predicts what a configuration would reach, from what the probe measured.

The model is the simplest that tells waiting from computing: a worker needs `load` seconds for a batch,
of which `cpu_share` keeps a CPU busy; the CPUs are shared by workers and step; the step bounds everything.
It need not be right, only good enough to point at where to look first: trials decide.
"""

from __future__ import annotations

import math
from typing import Final

from autotune.machine import count_whole_cpus
from autotune.messages import WorkloadProfile
from autotune.schema import LoaderConfig

HANDOVER_SECONDS: Final = 0.0004  # per batch between worker and training process, torch 2.13, file_descriptor
HANDOVER_BYTES_PER_SECOND: Final = 2.5e9  # one copy into shared memory and its page faults
WORKER_START_SECONDS: Final = 0.02  # fork of one worker with torch imported
SPARE_WORKERS: Final = 2
LITTLE_WAITING: Final = 0.1  # share of a run that is spent waiting for data where the step decides
NOTHING: Final = 1e-9  # samples per second of an epoch without a batch
GENEROSITY: Final = 2  # workers offered to the search per worker that the model thinks useful


def predict_samples_per_second(
    config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, epochs: int
) -> float:
    """Predict the throughput of a training run.

    Args:
        config: The configuration.
        workload: What the probe measured.
        usable_cpus: CPUs that can be kept busy.
        epochs: Length of the run in epochs.

    Returns:
        Samples per second, greater than zero.
    """
    size = config.dataloader.batch_size or workload.probe_batch_size
    steady = _predict_batch_seconds(config, workload, usable_cpus)
    batches = count_epoch_batches(workload, size)
    if batches is None:
        return size / steady
    if batches == 0:
        return NOTHING
    workers = config.dataloader.num_workers
    start = workers * WORKER_START_SECONDS
    fill = workload.load.per_batch(size) if workers else 0.0
    cold = predict_cold_seconds(config, workload, usable_cpus)
    starts = 1 if config.dataloader.persistent_workers else epochs
    total = max(epochs * (batches * steady + fill) + starts * start + cold, 1e-9)
    return epochs * batches * size / total


def _predict_batch_seconds(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> float:
    size = config.dataloader.batch_size or workload.probe_batch_size
    workers = config.dataloader.num_workers
    load, step = workload.load.per_batch(size), workload.step.per_batch(size)
    if workers == 0:
        return max(load + step, 1e-7)
    handover = HANDOVER_SECONDS + size * workload.sample_bytes / HANDOVER_BYTES_PER_SECOND
    cpu_bound = (load * workload.cpu_share + 2 * handover) / usable_cpus
    return max((load + handover) / workers, cpu_bound, step + handover, 1e-7)


def predict_cold_seconds(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float) -> float:
    """Predict what the first epoch of a fresh process costs beyond that of a warm one.

    With the `file_system` strategy every worker of the first epoch starts a shared-memory manager of its own;
    later workers inherit the training process's connection. Measured with torch 2.13 on two CPUs: 1.1 to 1.3 s for
    10 to 12 workers, a sixth of a ten-epoch run of 512 samples.

    Args:
        config: The configuration.
        workload: What the probe measured.
        usable_cpus: CPUs that can be kept busy.

    Returns:
        Seconds; 0 for other strategies and without workers.
    """
    workers = config.dataloader.num_workers
    if not workers or config.process.sharing_strategy != "file_system":
        return 0.0
    return workload.manager_seconds * max(1.0, workers / usable_cpus)


def count_epoch_batches(workload: WorkloadProfile, batch_size: int) -> int | None:
    """Count the batches of an epoch.

    Args:
        workload: The probed workload.
        batch_size: Samples per batch.

    Returns:
        Batches, or None when the length of the data is not known.
    """
    if workload.epoch_batches is not None:
        return workload.epoch_batches
    if workload.samples is None:
        return None
    whole, rest = divmod(workload.samples, batch_size)
    return whole + (1 if rest and not workload.drop_last else 0)


def suggest_most_workers(workload: WorkloadProfile, batch_size: int, usable_cpus: float) -> int:
    """Bound the search by what can still help, not by the number of CPUs.

    Samples that compute saturate the CPUs with about as many workers; samples that wait want as many
    workers as it takes to hide the waiting.

    Args:
        workload: What the probe measured.
        batch_size: Samples per batch.
        usable_cpus: CPUs that can be kept busy.

    Returns:
        About twice the workers that the model thinks useful, at least the CPUs plus two.
    """
    load = max(workload.load.per_batch(batch_size), 1e-7)
    step = max(workload.step.per_batch(batch_size), 1e-7)
    cpu_seconds = max(load * workload.cpu_share / usable_cpus, 1e-7)
    useful = load / max(step, cpu_seconds)
    return max(count_whole_cpus(usable_cpus), math.ceil(GENEROSITY * useful)) + SPARE_WORKERS


def find_bottleneck(config: LoaderConfig, workload: WorkloadProfile, usable_cpus: float, wait_fraction: float) -> str:
    """Name what bounds a measured run.

    Args:
        config: The configuration that ran.
        workload: What the probe measured.
        usable_cpus: CPUs that can be kept busy.
        wait_fraction: Share of the run spent waiting for data.

    Returns:
        `step`, `cpu` (workers computing), `waiting` (workers waiting on storage), or `epoch`
        (starting and refilling at every epoch).
    """
    if wait_fraction < LITTLE_WAITING:
        return "step"
    size = config.dataloader.batch_size or workload.probe_batch_size
    load, step = workload.load.per_batch(size), workload.step.per_batch(size)
    workers = config.dataloader.num_workers
    if workers == 0:
        return "step" if step > load else ("cpu" if workload.cpu_share > 0.5 else "waiting")
    computing = load * workload.cpu_share / min(workers, usable_cpus)
    if max(load / workers, computing) <= step:
        return "epoch"
    return "cpu" if computing > 0.5 * load / workers else "waiting"
