"""What this machine and its container allow: CPUs, memory, /dev/shm, open files.

`os.cpu_count()` ignores affinity and cgroup quotas, and torch's own suggestion ignores the quota; both let a
container with half a CPU start sixteen workers.
"""

from __future__ import annotations

import math
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autotune.system.cgroups import list_memory_limits, read_cpu_quota
from autotune.system.hardware import Accelerator, Hardware
from autotune.system.kernel_files import CGROUP, PROC, SHM, read_text

MAX_NOFILE: Final = 1 << 20  # open files that an unlimited process is taken to have: the kernel's own default bound


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """What a training process on this machine may use, at the moment of reading.

    Attributes:
        cpu: Model name of the processor; None when the system does not tell.
        affinity_cpus: CPUs the scheduler may place us on.
        quota_cpus: Smallest cgroup CPU quota; None without one.
        memory_limit_bytes: Smallest of physical memory and every cgroup limit.
        memory_available_bytes: What can be taken now without pushing others out.
        shm_limit_bytes: Size of /dev/shm; 0 where there is none.
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
        """CPUs that can be kept busy: the smaller of affinity and quota."""
        affinity = float(self.affinity_cpus)
        return affinity if self.quota_cpus is None else min(affinity, self.quota_cpus)

    @property
    def cpu_source(self) -> str:
        """What decides about `usable_cpus`: `cgroup` or `affinity`."""
        return "cgroup" if self.usable_cpus < self.affinity_cpus else "affinity"

    def share(self, processes: int) -> MachineProfile:
        """Give what one of so many training processes has of it, as far as it computes; budgets divide the rest."""
        return self if processes == 1 else replace(self, quota_cpus=self.usable_cpus / processes)

    def hardware(self, accelerator: Accelerator | None) -> Hardware:
        """Give the part that a tuned profile is bound to."""
        return Hardware(
            gpu=accelerator and accelerator.name,
            gpu_count=accelerator.count if accelerator else 0,
            gpu_memory_bytes=accelerator.memory_bytes if accelerator else 0,
            compute_capability=accelerator and accelerator.compute_capability,
            cpu=self.cpu,
            usable_cpus=self.usable_cpus,
            memory_limit_bytes=self.memory_limit_bytes,
            shm_limit_bytes=self.shm_limit_bytes,
            nofile_limit=self.nofile_limit,
        )


def read_machine(proc: Path = PROC, cgroup: Path = CGROUP, shm: Path = SHM) -> MachineProfile:
    """Read what the machine and the container allow."""
    shm_size, shm_free = read_shm(shm)
    return MachineProfile(
        cpu=_read_cpu_name(proc),
        affinity_cpus=len(os.sched_getaffinity(0)),
        quota_cpus=read_cpu_quota(proc, cgroup),
        memory_limit_bytes=read_memory_limit(proc, cgroup),
        memory_available_bytes=AvailableMemory(proc, cgroup).read(),
        shm_limit_bytes=shm_size,
        shm_free_bytes=shm_free,
        shm_writable=os.access(shm, os.W_OK),
        nofile_limit=_read_nofile_limit(),
    )


def _read_nofile_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_NOFILE if soft == resource.RLIM_INFINITY else soft


def _read_cpu_name(proc: Path) -> str | None:
    for line in read_text(proc / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip() or None
    return None


def read_shm(shm: Path = SHM) -> tuple[int, int]:
    """Read the size and the free space of the shared-memory file system, in bytes; zeros where there is none."""
    try:
        status = os.statvfs(shm)
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def read_memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Read the smallest of physical memory and every memory limit of our cgroup's ancestors, in bytes."""
    return min([_read_meminfo(proc, "MemTotal"), *(limit.limit_bytes for limit in list_memory_limits(proc, cgroup))])


class AvailableMemory:
    """Tells again and again how much memory can be taken now without pushing other processes out.

    Which cgroups limit it is found once: looking for them takes ten times as long as reading them.
    """

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._limits = list_memory_limits(proc, cgroup)

    def read(self) -> int:
        """Give the bytes: the least of MemAvailable and the room left under each cgroup limit."""
        return min([_read_meminfo(self._proc, "MemAvailable"), *(limit.read_room() for limit in self._limits)])


def _read_meminfo(proc: Path, key: str) -> int:
    for line in read_text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def count_whole_cpus(usable_cpus: float) -> int:
    """Round usable CPUs up to whole ones, at least one."""
    return max(1, math.ceil(usable_cpus))
