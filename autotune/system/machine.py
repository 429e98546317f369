"""Hardware and limits of this machine and its container, read without starting torch or CUDA."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from autotune.config import Count, Cpus, FrozenModel, StartMethod
from autotune.system.cgroups import list_memory_limits, read_available, read_cpu_quota
from autotune.system.procfs import CGROUP, PROC, SHM, read_field


class Accelerator(FrozenModel):
    """The accelerator of a process: its model with the slice if it is partitioned (MIG), and its memory if known."""

    name: str
    count: Count = 1
    memory_bytes: Count = 0


class Hardware(FrozenModel):
    """The hardware that a profile was measured on."""

    gpu: Annotated[str, Field(pattern=r"\S")] | None  # name of the accelerator; None on a machine without one
    gpu_count: Count  # accelerators of that name
    cpu: str | None  # model of the CPU; None if unknown
    usable_cpus: Cpus  # the smaller of affinity and every cgroup quota
    memory_limit_bytes: Count  # the smaller of physical memory and every cgroup limit
    shm_limit_bytes: Count  # size of /dev/shm
    nofile_limit: Count  # soft limit of open files per process

    @property
    def machine_class(self) -> str:
        """Accelerators, CPUs and memory, such as `h100x1-12c-64g`; machines of one class share profiles."""
        gib = self.memory_limit_bytes / 2**30
        memory = f"{gib:.0f}g" if gib >= 1 else f"{gib * 1024:.0f}m"
        gpus = "cpu"
        if self.gpu is not None:
            model = re.search(r"[A-Za-z]*\d\w*( Ti\b| SUPER\b| XT\b| XTX\b| SFF\b| Ada\b)*", self.gpu)
            gpus = f"{(model[0].replace(' ', '') if model else self.gpu.split()[-1]).lower()}x{self.gpu_count}"
        return f"{gpus}-{self.usable_cpus:g}c-{memory}"

    def is_like(self, other: Hardware) -> bool:
        """Return whether results of the other machine are taken up here: its class and its accelerator are the same."""
        return self.machine_class == other.machine_class and self.gpu == other.gpu


class Software(FrozenModel):
    """The software that a profile was measured with."""

    dltune: str
    torch: str
    cuda: str | None  # version that torch was built with; None for a CPU build
    python: str
    start_method: StartMethod  # of workers, by default


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """Resources that a training process on this machine may use."""

    cpu: str | None
    affinity_cpus: int
    quota_cpus: float | None  # the smallest of the cgroups' quotas; None without one
    memory_limit_bytes: int
    memory_available_bytes: int  # free now, or reclaimable
    shm_limit_bytes: int
    shm_free_bytes: int
    shm_writable: bool
    nofile_limit: int

    @property
    def usable_cpus(self) -> float:
        """The smaller of affinity and quota."""
        return float(min(self.affinity_cpus, self.quota_cpus or math.inf))

    def of_host(self, processes: int) -> MachineProfile:
        """Return the machine that so many training processes share: srun binds each one to a part of the CPUs."""
        return self if processes == 1 else replace(self, affinity_cpus=max(self.affinity_cpus, count_launcher_cpus()))

    def per_rank(self, processes: int) -> MachineProfile:
        """Return the machine with the CPUs of one of several training processes; budgets divide the other resources."""
        return self if processes == 1 else replace(self, quota_cpus=self.usable_cpus / processes)

    def hardware(self, accelerator: Accelerator | None) -> Hardware:
        """Return the hardware that a profile stores."""
        gpu, count = (accelerator.name, accelerator.count) if accelerator else (None, 0)
        names = ("cpu", "usable_cpus", "memory_limit_bytes", "shm_limit_bytes", "nofile_limit")
        return Hardware(gpu=gpu, gpu_count=count, **{name: getattr(self, name) for name in names})


def read_machine(proc: Path = PROC, cgroup: Path = CGROUP, shm: Path = SHM) -> MachineProfile:
    """Read the limits of the machine and the container."""
    shm_size, shm_free = read_shm(shm)
    return MachineProfile(
        cpu=read_field(proc / "cpuinfo", "model name"),
        affinity_cpus=len(os.sched_getaffinity(0)),
        quota_cpus=read_cpu_quota(proc, cgroup),
        memory_limit_bytes=read_memory_limit(proc, cgroup),
        memory_available_bytes=AvailableMemory(proc, cgroup).read(),
        shm_limit_bytes=shm_size,
        shm_free_bytes=shm_free,
        shm_writable=os.access(shm, os.W_OK),
        nofile_limit=read_nofile_limit(),
    )


def read_nofile_limit() -> int:
    """Return the soft limit of open files, which this process may change."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit  # the kernel's default maximum


def read_shm(shm: Path = SHM) -> tuple[int, int]:
    """Return the size and the free space of /dev/shm, in bytes: the memory if it has no limit, 0 if there is none."""
    size = free = 0
    with suppress(OSError):
        size, _, free = shutil.disk_usage(shm)
        if not size:
            size = free = read_memory_limit()
    return size, free


def read_memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the smallest of physical memory and every memory limit of our cgroup and its ancestors, in bytes."""
    return min([_read_memory(proc, "MemTotal"), *(limit for limit, *_ in list_memory_limits(proc, cgroup))])


class AvailableMemory:
    """Reads repeatedly how much memory is available; finding the limits takes ten times as long as reading them."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._limits = list_memory_limits(proc, cgroup)

    def read(self) -> int:
        """Return the bytes: the smallest of MemAvailable and the bytes left under each cgroup limit."""
        return min([_read_memory(self._proc, "MemAvailable"), *(read_available(*limit) for limit in self._limits)])


def _read_memory(proc: Path, name: str) -> int:
    text = read_field(proc / "meminfo", name)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if text is None else int(text.split()[0]) * 1024


def count_launcher_cpus() -> int:
    """Return the CPUs of the process that started this one: srun and mpirun bind each process to a part of them."""
    with suppress(OSError):
        return len(os.sched_getaffinity(os.getppid()))
    return len(os.sched_getaffinity(0))


def count_whole_cpus(usable_cpus: float) -> int:
    """Round usable CPUs up to whole ones, at least one."""
    return max(1, math.ceil(usable_cpus))


def read_gpus(proc: Path = PROC, environ: Mapping[str, str] = os.environ, dev: Path = Path("/dev")) -> tuple[str, ...]:
    """List the NVIDIA GPUs that a training process here would see, as torch names them; a slice ends in `MIG`.

    /proc may list all GPUs of the host; those of a container have a device file.
    """
    gpus = []
    for file in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        model, minor = read_field(file, "Model") or "unknown GPU", read_field(file, "Device Minor")
        if minor is None or (dev / f"nvidia{minor}").exists():
            is_partitioned = any(proc.glob(f"driver/nvidia/capabilities/gpu{minor}/mig/gi*"))
            gpus.append((f"{model} MIG" if is_partitioned else model, read_field(file, "GPU UUID") or ""))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        slices = [model for model, _ in gpus if model.endswith(" MIG")]
        return tuple(slices[:1] or (model for model, _ in gpus))  # CUDA sees a single slice
    names = []
    for entry in map(str.strip, visible.split(",")):  # numbers, or beginnings of UUIDs
        found = gpus[int(entry) :] if entry.isdecimal() else [gpu for gpu in gpus if entry and gpu[1].startswith(entry)]
        if entry.startswith("MIG-"):
            found = [(f"{model.removesuffix(' MIG')} MIG", "") for model, _ in gpus]
        if not found:
            break  # CUDA ignores the entries after an invalid one
        names.append(found[0][0])
    return tuple(names)


def describe_local_hardware(
    machine: MachineProfile, there: Hardware, *, gpus: Sequence[str] | None = None, dev: Path = Path("/dev")
) -> Hardware:
    """Return this machine's hardware, to compare with a profile's; `gpus` are the names that the driver lists.

    If there are accelerators of several models, only those of the profile's model count. An accelerator that only torch
    can name is assumed to be the profile's if its device file exists.
    """
    listed, tuned = read_gpus() if gpus is None else gpus, there.gpu
    if not listed and tuned:
        is_amd = re.search(r"\b(AMD|Radeon|Instinct)\b", tuned) is not None
        if any(dev.glob("dri/renderD*" if tuned == "xpu" else "kfd" if is_amd else "dxg")):  # the last one in WSL
            return machine.hardware(Accelerator(name=tuned, count=there.gpu_count))
    # The driver does not name the slice of a partitioned GPU.
    names = [tuned if tuned and one.endswith(" MIG") and tuned.startswith(f"{one} ") else one for one in listed]
    gpu = tuned if tuned in names else next(iter(names), None)
    return machine.hardware(None if gpu is None else Accelerator(name=gpu, count=names.count(gpu)))
