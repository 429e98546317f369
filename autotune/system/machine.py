"""What this machine and its container allow: CPUs, memory, /dev/shm, open files.

`os.cpu_count()` ignores affinity and cgroup quotas, and torch's own suggestion ignores the quota; both let a
container with half a CPU start sixteen workers. So every ancestor of our cgroup is asked, version 2 first,
then version 1, and "no limit" is a legal answer. All roots are parameters: a test hands over a folder.
"""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from autotune.config import Bytes, Count, FrozenModel
from autotune.system.hardware import Accelerator, Hardware

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
SHM: Final = Path("/dev/shm")
DEV: Final = Path("/dev")
VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
UNLIMITED_V1: Final = 1 << 60  # version 1 writes "no limit" as 9223372036854771712


class MachineProfile(FrozenModel):
    """What a training process on this machine may use, at the moment of reading.

    Attributes:
        cpu: Model name of the processor; None when the system does not tell.
        affinity_cpus: CPUs the scheduler may place us on.
        quota_cpus: Smallest cgroup CPU quota, in CPUs; None without one.
        memory_limit_bytes: Smallest of physical memory and every cgroup limit.
        memory_available_bytes: What can be taken now without pushing others out.
        shm_limit_bytes: Size of /dev/shm; 0 where there is none.
        shm_free_bytes: Free bytes of /dev/shm.
        shm_writable: Whether workers can hand batches over through it.
        nofile_limit: Soft limit of open files.
    """

    cpu: str | None
    affinity_cpus: Count
    quota_cpus: float | None
    memory_limit_bytes: Bytes
    memory_available_bytes: Bytes
    shm_limit_bytes: Bytes
    shm_free_bytes: Bytes
    shm_writable: bool
    nofile_limit: Count

    @property
    def usable_cpus(self) -> float:
        """CPUs that can be kept busy: the smaller of affinity and quota."""
        if self.quota_cpus is None:
            return float(self.affinity_cpus)
        return min(float(self.affinity_cpus), self.quota_cpus)

    @property
    def cpu_source(self) -> str:
        """What decides about `usable_cpus`: `cgroup` or `affinity`."""
        return "cgroup" if self.usable_cpus < self.affinity_cpus else "affinity"

    def hardware(self, accelerator: Accelerator | None) -> Hardware:
        """Give the part that a tuned profile is bound to.

        Args:
            accelerator: What the child reports of it; None on the CPU.

        Returns:
            The fingerprint written into the profile.
        """
        return Hardware(
            gpu=accelerator and accelerator.name,
            gpu_count=accelerator.count if accelerator else 0,
            gpu_memory_bytes=accelerator.memory_bytes if accelerator else 0,
            compute_capability=accelerator and accelerator.compute_capability,
            pcie=accelerator and accelerator.pcie,
            cpu=self.cpu,
            usable_cpus=self.usable_cpus,
            memory_limit_bytes=self.memory_limit_bytes,
            shm_limit_bytes=self.shm_limit_bytes,
            nofile_limit=self.nofile_limit,
        )


def read_machine(proc: Path = PROC, cgroup: Path = CGROUP, shm: Path = SHM) -> MachineProfile:
    """Read what the machine and the container allow.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.
        shm: Where POSIX shared memory lies.

    Returns:
        The profile of this moment.
    """
    shm_size, shm_free = read_shm(shm)
    return MachineProfile(
        cpu=_read_cpu_name(proc),
        affinity_cpus=_count_affinity_cpus(),
        quota_cpus=read_cpu_quota(proc, cgroup),
        memory_limit_bytes=read_memory_limit(proc, cgroup),
        memory_available_bytes=read_available_memory(proc, cgroup),
        shm_limit_bytes=shm_size,
        shm_free_bytes=shm_free,
        shm_writable=os.access(shm, os.W_OK),
        nofile_limit=_read_nofile_limit(),
    )


def _count_affinity_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_nofile_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _read_cpu_name(proc: Path) -> str | None:
    for line in read_text(proc / "cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip() or None
    return None


def read_shm(shm: Path = SHM) -> tuple[int, int]:
    """Read the size and the free space of the shared-memory file system.

    Args:
        shm: Its mount point.

    Returns:
        Size and free space in bytes; zeros where there is none.
    """
    try:
        status = os.statvfs(shm)
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def read_cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """Read the smallest CPU quota of our cgroup and all its ancestors.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.

    Returns:
        CPUs, or None when no quota is set.
    """
    quotas = [_read_quota_v2(folder) for folder in walk_ancestors(proc, cgroup, "")]
    quotas += [_read_quota_v1(folder) for folder in walk_ancestors(proc, cgroup, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_quota_v2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    if not quota.isdigit() or not period.isdigit():
        return None
    return int(quota) / int(period)


def _read_quota_v1(folder: Path) -> float | None:
    quota = _read_int(folder / "cpu.cfs_quota_us")
    period = _read_int(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0:
        return None
    return quota / period


def read_memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Read the smallest of physical memory and every memory limit of our cgroup's ancestors.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.

    Returns:
        Bytes.
    """
    budgets = [group.limit_bytes for group in _find_memory_groups(proc, cgroup)]
    return min([_read_meminfo(proc, "MemTotal"), *budgets])


class MemoryGroup(FrozenModel):
    """A cgroup of ours that limits memory, and where its use stands."""

    limit_bytes: Bytes
    folder: Path
    usage_name: str
    cache_key: str

    def measure_room(self) -> int:
        """Give the bytes that may still be taken."""
        return max(0, self.limit_bytes - _read_used(self.folder, self.usage_name, self.cache_key))


class AvailableMemory:
    """Tells again and again how much memory can be taken now without pushing other processes out.

    Which cgroups limit it is found once: looking for them takes ten times as long as reading them.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.
    """

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._groups = _find_memory_groups(proc, cgroup)

    def read(self) -> int:
        """Give the bytes: the least of MemAvailable and the room left under each cgroup limit."""
        return min([_read_meminfo(self._proc, "MemAvailable"), *(group.measure_room() for group in self._groups)])


def read_available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Read how much memory can be taken now without pushing other processes out.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where cgroups are mounted.

    Returns:
        Bytes, as `MemoryGauge` gives them.
    """
    return AvailableMemory(proc, cgroup).read()


def _find_memory_groups(proc: Path, cgroup: Path) -> list[MemoryGroup]:
    kinds = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )  # versions 2 and 1
    return [
        MemoryGroup(limit_bytes=limit, folder=folder, usage_name=usage_name, cache_key=cache_key)
        for controller, limit_name, usage_name, cache_key in kinds
        for folder in walk_ancestors(proc, cgroup, controller)
        if (limit := _read_int(folder / limit_name)) is not None and limit < UNLIMITED_V1
    ]


def _read_used(folder: Path, usage_name: str, cache_key: str) -> int:
    """Read a cgroup's usage less the file cache that the kernel gives back on demand."""
    usage = _read_int(folder / usage_name) or 0
    for line in read_text(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == cache_key and value.isdigit():
            return max(0, usage - int(value))
    return usage


def _read_meminfo(proc: Path, key: str) -> int:
    for line in read_text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def walk_ancestors(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Yield our cgroup's folder and its ancestors up to the root of the mount.

    An empty `controller` stands for version 2. A container often sees its own path of the host in
    /proc/self/cgroup but has only its own subtree mounted; folders that do not exist are passed over.
    """
    for line in read_text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        for root in _find_mounts(cgroup, controllers, controller):
            folder = root / path.lstrip("/")
            for ancestor in (folder, *folder.parents):
                if ancestor.is_dir():
                    yield ancestor
                if ancestor == root:
                    break


def _find_mounts(cgroup: Path, controllers: str, controller: str) -> Iterator[Path]:
    names = ("unified", "") if not controller else dict.fromkeys((controllers, controller))
    for name in names:
        if (cgroup / name).is_dir():
            yield cgroup / name
            return


def _read_int(path: Path) -> int | None:
    text = read_text(path).strip()
    try:
        return int(text)
    except ValueError:
        return None


def read_text(path: Path) -> str:
    """Read a file of the kernel's; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def count_whole_cpus(usable_cpus: float) -> int:
    """Round usable CPUs up to whole ones, at least one."""
    return max(1, math.ceil(usable_cpus))


def read_gpus(proc: Path = PROC, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Name the NVIDIA GPUs that a training process here would see, without starting torch or CUDA.

    Args:
        proc: Where procfs is mounted.
        environ: Its `CUDA_VISIBLE_DEVICES` chooses among those that the driver lists.

    Returns:
        A model name for each GPU, as `torch.cuda.get_device_name` spells it; a slice of one (MIG) ends in `MIG`, for
        the driver does not say here which slice it is.
    """
    gpus = [_read_gpu(path) for path in sorted(proc.glob("driver/nvidia/gpus/*/information"))]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpu.model for gpu in gpus)
    names = []
    for entry in visible.split(","):
        name = _find_visible(entry.strip(), gpus)
        if name is None:
            break  # as CUDA does: what follows an invalid entry is not seen
        names.append(name)
    return tuple(names)


def may_have(gpu: str, dev: Path = DEV, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether an accelerator that `read_gpus` does not list may be here all the same.

    NVIDIA's driver lists its GPUs on Linux itself; in WSL, and those of AMD and Intel, have no name that can be read
    without starting them. A process that can use one has its device file, and more is not asked for.

    Args:
        gpu: What it is called in a profile, by torch.
        dev: Where the device files lie.
        environ: An empty list of visible devices hides them.
    """
    if any(environ.get(name, "unset").strip() in ("", "-1") for name in VISIBLE):
        return False
    is_amd = re.search(r"\b(AMD|Radeon|Instinct)\b", gpu) is not None
    file = "dri/renderD*" if gpu == "xpu" else "kfd" if is_amd else "dxg"
    return any(dev.glob(file))


class _Gpu(NamedTuple):
    model: str
    uuid: str


def _read_gpu(path: Path) -> _Gpu:
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    return _Gpu(facts.get("Model", "unknown GPU"), facts.get("GPU UUID", ""))


def _find_visible(entry: str, gpus: Sequence[_Gpu]) -> str | None:
    """Name the GPU that an entry of CUDA_VISIBLE_DEVICES means: a number, or the beginning of a UUID."""
    if entry.isdecimal():
        return gpus[int(entry)].model if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        return f"{gpus[0].model} MIG" if gpus else None
    return next((gpu.model for gpu in gpus if entry and gpu.uuid.startswith(entry)), None)
