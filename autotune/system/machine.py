"""CPUs, memory, /dev/shm and open files that this machine and its container allow.

`os.cpu_count()` ignores affinity and cgroup quotas; torch's suggested number of workers ignores the quota.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autotune.system.cgroups import list_memory_limits, read_cpu_quota
from autotune.system.hardware import Accelerator, Hardware, may_have, read_gpus
from autotune.system.processes import CGROUP, DEV, PROC, SHM, read_field

MAX_NOFILE: Final = 1 << 20  # open files of a process without a limit: the kernel's default maximum


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Resources that a training process on this machine may use.

    Attributes:
        cpu: Model name of the processor; None if unknown.
        affinity_cpus: CPUs of our affinity.
        quota_cpus: Smallest cgroup CPU quota; None without one.
        memory_limit_bytes: Smallest of physical memory and every cgroup limit.
        memory_available_bytes: Memory that is free now or can be reclaimed.
        shm_limit_bytes: Size of /dev/shm; 0 if there is none.
        nofile_limit: Soft limit of open files.
    """

    cpu: str | None
    affinity_cpus: int
    quota_cpus: float | None
    memory_limit_bytes: int
    memory_available_bytes: int
    shm_limit_bytes: int
    shm_free_bytes: int
    shm_writable: bool
    nofile_limit: int

    @property
    def usable_cpus(self) -> float:
        """The smaller of affinity and quota."""
        affinity = float(self.affinity_cpus)
        return affinity if self.quota_cpus is None else min(affinity, self.quota_cpus)

    @property
    def cpu_source(self) -> str:
        """The limit that determines `usable_cpus`: `cgroup` or `affinity`."""
        return "cgroup" if self.usable_cpus < self.affinity_cpus else "affinity"

    def share(self, processes: int) -> MachineProfile:
        """Return the machine with the CPUs of one of several training processes; budgets divide the other resources."""
        return self if processes == 1 else replace(self, quota_cpus=self.usable_cpus / processes)

    def hardware(self, accelerator: Accelerator | None) -> Hardware:
        """Return the hardware that a profile stores."""
        return Hardware(
            gpu=accelerator and accelerator.name,
            gpu_count=accelerator.count if accelerator else 0,
            gpu_memory_bytes=accelerator.memory_bytes if accelerator else 0,
            cpu=self.cpu,
            usable_cpus=self.usable_cpus,
            memory_limit_bytes=self.memory_limit_bytes,
            shm_limit_bytes=self.shm_limit_bytes,
            nofile_limit=self.nofile_limit,
        )


def read_machine(proc: Path = PROC, cgroup: Path = CGROUP, shm: Path = SHM) -> MachineProfile:
    """Read the limits of the machine and the container."""
    shm_size, shm_free = read_shm(shm)
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineProfile(
        cpu=read_field(proc / "cpuinfo", "model name"),
        affinity_cpus=len(os.sched_getaffinity(0)),
        quota_cpus=read_cpu_quota(proc, cgroup),
        memory_limit_bytes=read_memory_limit(proc, cgroup),
        memory_available_bytes=AvailableMemory(proc, cgroup).read(),
        shm_limit_bytes=shm_size,
        shm_free_bytes=shm_free,
        shm_writable=os.access(shm, os.W_OK),
        nofile_limit=MAX_NOFILE if soft_limit == resource.RLIM_INFINITY else soft_limit,
    )


def describe_local_hardware(
    machine: MachineProfile, there: Hardware, *, gpus: Sequence[str] | None = None, dev: Path = DEV
) -> Hardware:
    """Return this machine's hardware, to compare with a profile's; `gpus` are the names that the driver lists.

    If there are accelerators of several models, only those of the profile's model count. An accelerator that only torch
    can name is assumed to be the profile's if its device file exists.
    """
    listed, tuned = read_gpus() if gpus is None else gpus, there.gpu
    if not listed and tuned and may_have(tuned, dev):
        return machine.hardware(Accelerator(name=tuned, count=there.gpu_count))
    # The driver does not name the slice of a partitioned GPU.
    names = [tuned if tuned and one.endswith(" MIG") and tuned.startswith(f"{one} ") else one for one in listed]
    gpu = tuned if tuned in names else next(iter(names), None)
    return machine.hardware(None if gpu is None else Accelerator(name=gpu, count=names.count(gpu)))


def read_shm(shm: Path = SHM) -> tuple[int, int]:
    """Return the size and the free space of /dev/shm, in bytes; zeros if there is none."""
    try:
        status = os.statvfs(shm)
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def read_memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the smallest of physical memory and every memory limit of our cgroup and its ancestors, in bytes."""
    return min([_read_memory(proc, "MemTotal"), *(limit.limit_bytes for limit in list_memory_limits(proc, cgroup))])


class AvailableMemory:
    """Reads repeatedly how much memory is available; finding the limits takes ten times as long as reading them."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._limits = list_memory_limits(proc, cgroup)

    def read(self) -> int:
        """Return the bytes: the smallest of MemAvailable and the bytes left under each cgroup limit."""
        return min([_read_memory(self._proc, "MemAvailable"), *(limit.read_available() for limit in self._limits)])


def _read_memory(proc: Path, name: str) -> int:
    text = read_field(proc / "meminfo", name)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if text is None else int(text.split()[0]) * 1024


def count_whole_cpus(usable_cpus: float) -> int:
    """Round usable CPUs up to whole ones, at least one."""
    return max(1, math.ceil(usable_cpus))
