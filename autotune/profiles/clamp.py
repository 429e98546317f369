"""Reduces a tuned configuration to what a smaller machine can bear."""

from __future__ import annotations

import math
from typing import Final

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.profiles.schema import TunedProfile
from autotune.system.machine import MachineProfile

MAX_SHM_SHARE: Final = 0.8  # of /dev/shm that batches may fill
MAX_MEMORY_SHARE: Final = 0.8
RESERVED_FILES: Final = 128  # open files of the process itself and of the batches in flight
MAX_FILES_PER_WORKER: Final = 8  # that the training process holds


def clamp_config(profile: TunedProfile, here: MachineProfile, ranks: int = 1) -> LoaderConfig:
    """Give the configuration of a profile that was tuned elsewhere, with never more of anything.

    As many workers for each CPU as it had there, and fewer where memory, open files or /dev/shm ask for it; batches
    ahead are given up before workers. So many training processes share this host.
    """
    settings = profile.dataloader
    queue = _count_fitting_batches(profile, here, ranks)
    files = (here.nofile_limit - RESERVED_FILES) // MAX_FILES_PER_WORKER
    bounds = [settings.num_workers, _share_workers(profile, here, ranks), files, *([] if queue is None else [queue])]
    workers = max(0, min(bounds))
    with_workers = {}
    if workers:
        prefetch = settings.prefetch_factor or 1
        with_workers = {
            "prefetch_factor": prefetch if queue is None else min(prefetch, queue // workers),
            "persistent_workers": settings.persistent_workers,
            "in_order": settings.in_order,
        }
    clamped = DataLoaderSettings(
        batch_size=settings.batch_size, num_workers=workers, pin_memory=settings.pin_memory, **with_workers
    )
    return profile.config.model_copy(update={"dataloader": clamped})


def _share_workers(profile: TunedProfile, here: MachineProfile, ranks: int) -> int:
    """Take workers in proportion to the CPUs, rounded up, and to the memory that the tuned ones filled."""
    there, peak = profile.hardware, profile.result.peak_host_bytes
    cpus = here.usable_cpus / ranks, there.usable_cpus / profile.workload.nproc_per_node
    by_cpus = math.ceil(profile.dataloader.num_workers * min(1.0, cpus[0] / cpus[1]))
    by_memory = MAX_MEMORY_SHARE * here.memory_limit_bytes / ranks / peak if peak else 1.0
    return min(by_cpus, int(profile.dataloader.num_workers * min(1.0, by_memory)))


def _count_fitting_batches(profile: TunedProfile, here: MachineProfile, ranks: int) -> int | None:
    """Count the batches that may lie ahead in /dev/shm beside the two in use; None where their size is not known."""
    batch_bytes = profile.workload.sample_bytes * (profile.dataloader.batch_size or 1)
    return int(here.shm_limit_bytes * MAX_SHM_SHARE / ranks) // batch_bytes - 2 if batch_bytes else None
