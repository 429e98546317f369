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


def clamp_config(profile: TunedProfile, here: MachineProfile) -> LoaderConfig:
    """Give the configuration of a profile that was tuned elsewhere, with never more of anything.

    As many workers for each CPU as it had there, and fewer where memory, open files or /dev/shm ask for it; batches
    ahead are given up before workers.
    """
    settings = profile.dataloader
    queue = _count_fitting_batches(profile, here)
    files = (here.nofile_limit - RESERVED_FILES) // MAX_FILES_PER_WORKER
    bounds = [settings.num_workers, _share_workers(profile, here), files, *([] if queue is None else [queue])]
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


def _share_workers(profile: TunedProfile, here: MachineProfile) -> int:
    """Take workers in proportion to the CPUs, rounded up, and to the memory that the tuned ones filled."""
    there, peak = profile.hardware, profile.result.peak_host_bytes
    by_cpus = math.ceil(profile.dataloader.num_workers * min(1.0, here.usable_cpus / there.usable_cpus))
    by_memory = MAX_MEMORY_SHARE * here.memory_limit_bytes / peak if peak else 1.0
    return min(by_cpus, int(profile.dataloader.num_workers * min(1.0, by_memory)))


def _count_fitting_batches(profile: TunedProfile, here: MachineProfile) -> int | None:
    """Count the batches that may lie ahead in /dev/shm beside the two in use; None where their size is not known."""
    batch_bytes = profile.workload.sample_bytes * (profile.dataloader.batch_size or 1)
    return int(here.shm_limit_bytes * MAX_SHM_SHARE) // batch_bytes - 2 if batch_bytes else None
