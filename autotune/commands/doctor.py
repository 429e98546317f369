"""Says what this machine and container allow, and the exact fix for what stands in the way."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from autotune.commands.namesakes import PACKAGE_DIR, ConflictingPackage, find_namesakes
from autotune.config import FrozenModel, StartMethod
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.scratch import MAX_TMPDIR_LENGTH
from autotune.system.cgroups import CpuThrottling, read_cpu_throttling
from autotune.system.gpus import read_gpus
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.mounts import Mount, find_mount
from autotune.system.versions import TorchVersion, read_start_method, read_torch
from autotune.units import format_bytes, format_seconds

SMALL_SHM: Final = 256 * 2**20  # a container's usual 64 MiB holds two batches of 32 images of 1 MiB
SMALL_MEMORY: Final = 2**30  # a training process holds a third of it before its first batch
FEW_FILES: Final = 4096  # 1,024 is a usual soft limit: about 60 workers, or a few hundred tensors in flight
THROTTLED_SHARE: Final = 0.01  # of periods; a start of workers alone uses up fewer
LARGER_SHM: Final = (
    "workers hand batches over through it: docker run --shm-size=8g; in Kubernetes a volume emptyDir: {medium: Memory} "
    "mounted at /dev/shm; in Slurm it is the node's own, which its administrator enlarges: "
    "mount -o remount,size=8G /dev/shm"
)
LARGER_MEMORY: Final = (
    "ask for more: docker run --memory=8g, in Kubernetes resources.limits.memory: 8Gi, in Slurm --mem=8G; "
    "what lies in /dev/shm counts against it"
)
SLOW_WORKERS: Final = (
    "workers start slowly: each imports your modules and unpickles dataset, collate_fn and worker_init_fn, which must "
    "be picklable; keep workers (persistent_workers=True), or give DataLoader multiprocessing_context='fork' where no "
    "thread of yours holds a lock"
)
MANY_WORKERS: Final = "many more workers than CPUs pay: leave --max-workers open, or copy the data to a local disk"
WAITING_READS: Final = {
    "network": f"reads wait for a server, and {MANY_WORKERS}",
    "program": f"a program answers reads, often from a network; they wait, and {MANY_WORKERS}",
    "overlay": (
        "layers of a container hide what is below: reads may wait, and then many workers pay; mount the data as a "
        "volume (docker -v, Kubernetes volumes, Apptainer --bind)"
    ),
}
State = Literal["ok", "warning", "problem"]


class Check(FrozenModel):
    """One line of the diagnosis.

    Attributes:
        name: What was looked at.
        state: `ok`, `warning` for what costs speed or certainty, `problem` for what makes tuning impossible.
        finding: What was found.
        fix: What to do about it; empty where nothing needs doing.
    """

    name: str
    state: State
    finding: str
    fix: str = ""


class SystemFacts(FrozenModel):
    """What is examined, as it was read.

    Attributes:
        machine: What the machine allows.
        containment: The walls that can be put up around trials.
        gpus: Names of the accelerators that the driver lists.
        torch: The build of torch; None where there is none.
        quotas: How often the CPU quotas that hold here were used up.
        start_method: How Python starts worker processes.
        storage: Where the data is kept; None where nobody asked, or the system does not tell.
        namesakes: Other packages of our name.
    """

    machine: MachineProfile
    containment: SandboxSupport
    gpus: tuple[str, ...] = ()
    torch: TorchVersion | None
    quotas: tuple[CpuThrottling, ...] = ()
    start_method: StartMethod = "fork"
    storage: Mount | None = None
    namesakes: tuple[ConflictingPackage, ...] = ()


def collect_facts(data: Path | None = None) -> SystemFacts:
    """Read what there is to examine.

    Args:
        data: Where the dataset lies; None leaves that out.

    Returns:
        What was read.

    Raises:
        UsageError: There is no such path.
    """
    return SystemFacts(
        storage=find_mount(data) if data is not None else None,
        machine=read_machine(),
        containment=detect_sandbox(),
        gpus=read_gpus(),
        torch=read_torch(),
        quotas=read_cpu_throttling(),
        start_method=read_start_method(),
        namesakes=find_namesakes(),
    )


def run_checks(found: SystemFacts) -> tuple[Check, ...]:
    """Examine what tuning and training will meet here.

    Args:
        found: What was read.

    Returns:
        The checks, in the order in which they are shown.
    """
    return (
        _check_torch(found.torch, found.gpus),
        _check_gpus(found.gpus),
        _check_cpus(found.machine),
        _check_throttling(found.quotas),
        _check_memory(found.machine),
        _check_shm(found.machine),
        _check_files(found.machine),
        _check_start_method(found.start_method),
        *([] if found.storage is None else [_check_storage(found.storage)]),
        _check_tmpdir(),
        _check_folder(),
        *_check_namesakes(found.namesakes),
        *_check_isolation(found.containment),
    )


def _check_torch(torch: TorchVersion | None, gpus: tuple[str, ...]) -> Check:
    fix = "install the build for your GPU: https://pytorch.org/get-started"
    if torch is None:
        return Check(name="torch", state="problem", finding="not installed", fix=fix)
    if gpus and torch.cuda is None:
        finding = f"{torch.version}, built without CUDA: the GPU stays idle"
        return Check(name="torch", state="warning", finding=finding, fix=fix)
    cuda = f", CUDA {torch.cuda}" if torch.cuda is not None else ""
    return Check(name="torch", state="ok", finding=f"{torch.version}{cuda}")


def _check_gpus(gpus: tuple[str, ...]) -> Check:
    if gpus:
        return Check(name="GPU", state="ok", finding=", ".join(gpus))
    return Check(name="GPU", state="ok", finding="none that the NVIDIA driver lists: trials run on the CPU")


def _check_cpus(machine: MachineProfile) -> Check:
    present = os.cpu_count() or 1
    finding = f"{machine.usable_cpus:g} of {present} usable ({machine.cpu_source})"
    if machine.cpu_source == "cgroup":
        fix = (
            "a quota stops all workers together when it is used up: ask for whole CPUs (docker --cpuset-cpus, "
            "Kubernetes' static CPU manager, Slurm --cpus-per-task), or for a larger quota (docker --cpus, limits.cpu)"
        )
        return Check(name="CPUs", state="warning", finding=finding, fix=fix)
    return Check(name="CPUs", state="ok", finding=finding)


def _check_throttling(quotas: tuple[CpuThrottling, ...]) -> Check:
    """Say how often a CPU quota was used up; of several the one that was used up most."""
    worst = max((use for use in quotas if use.periods), key=lambda use: use.throttled_share, default=None)
    if worst is None:
        return Check(name="CPU throttling", state="ok", finding="none: no quota has counted any period")
    stopped = f", {format_seconds(worst.throttled_seconds)} in all" if worst.throttled_seconds else ""
    finding = f"{worst.throttled_share:.1%} of {worst.periods:,} periods since the cgroup was made{stopped}"
    if worst.throttled_share <= THROTTLED_SHARE:
        return Check(name="CPU throttling", state="ok", finding=finding)
    fix = (
        "all workers stand still until the next period: raise or drop the quota (docker --cpus, Kubernetes "
        "resources.limits.cpu), or run fewer workers and threads; tune under the quota that training will have"
    )
    return Check(name="CPU throttling", state="warning", finding=finding, fix=fix)


def _check_memory(machine: MachineProfile) -> Check:
    available, limit = machine.memory_available_bytes, machine.memory_limit_bytes
    finding = f"{format_bytes(available)} of {format_bytes(limit)} available"
    if available >= SMALL_MEMORY:
        return Check(name="memory", state="ok", finding=finding)
    fix = LARGER_MEMORY if limit < 2 * SMALL_MEMORY else f"other processes hold it: end them, or {LARGER_MEMORY}"
    return Check(name="memory", state="warning", finding=finding, fix=fix)


def _check_shm(machine: MachineProfile) -> Check:
    finding = f"{format_bytes(machine.shm_free_bytes)} of {format_bytes(machine.shm_limit_bytes)} free"
    if not machine.shm_writable:
        fix = "mount it writable (docker --tmpfs /dev/shm, or --shm-size=1g); until then only num_workers=0 works"
        return Check(name="/dev/shm", state="warning", finding="missing or read-only", fix=fix)
    if machine.shm_free_bytes >= SMALL_SHM:
        return Check(name="/dev/shm", state="ok", finding=finding)
    is_filled = machine.shm_limit_bytes >= 2 * SMALL_SHM
    fix = "it is filled: look with ls -l /dev/shm, and remove what dead jobs have left" if is_filled else LARGER_SHM
    return Check(name="/dev/shm", state="warning", finding=finding, fix=fix)


def _check_files(machine: MachineProfile) -> Check:
    finding = f"{machine.nofile_limit:,}"
    if machine.nofile_limit >= FEW_FILES:
        return Check(name="open files", state="ok", finding=finding)
    fix = f"ulimit -n {FEW_FILES} in the shell that trains and tunes; or sharing_strategy=file_system"
    return Check(name="open files", state="warning", finding=finding, fix=fix)


def _check_start_method(method: StartMethod) -> Check:
    version = ".".join(platform.python_version_tuple()[:2])
    finding = f"{method}, the default of Python {version} on {platform.system()}"
    if method == "fork":
        meaning = "workers start at once and share the dataset's memory until somebody writes"
        return Check(name="start method", state="ok", finding=f"{finding}: {meaning}")
    return Check(name="start method", state="warning", finding=finding, fix=SLOW_WORKERS)


def _check_storage(storage: Mount) -> Check:
    """Say what answers the reads of a dataset, and what that means for its workers."""
    finding = f"{storage.path}: {storage.filesystem} from {storage.device}"
    fix = WAITING_READS.get(storage.kind)
    if fix is not None:
        return Check(name="data", state="warning", finding=finding, fix=fix)
    if storage.kind == "memory":
        return Check(name="data", state="ok", finding=f"{finding}: in memory, which counts against the limit above")
    if storage.rotational:
        fix = "random reads wait for its head: copy the data to an SSD, or read few large files in order"
        return Check(name="data", state="warning", finding=f"{finding}, a disk that turns", fix=fix)
    known = "which does not turn" if storage.rotational is False else "and nothing tells whether that disk turns"
    return Check(name="data", state="ok", finding=f"{finding}, {known}")


def _check_tmpdir() -> Check:
    folder = tempfile.gettempdir()
    if len(folder) <= MAX_TMPDIR_LENGTH:
        return Check(name="TMPDIR", state="ok", finding=folder)
    fix = "training hangs with a path of 80 characters or more (socket names end at 108): export TMPDIR=/tmp"
    return Check(name="TMPDIR", state="warning", finding=f"{folder} ({len(folder)} characters)", fix=fix)


def _check_folder() -> Check:
    here = Path.cwd()
    if os.access(here, os.W_OK) and not os.statvfs(here).f_flag & os.ST_RDONLY:
        return Check(name="this folder", state="ok", finding="writable")
    fix = "start dltune where it may write, or name other places with --output and --storage"
    return Check(name="this folder", state="problem", finding=f"{here} is read-only", fix=fix)


def _check_namesakes(namesakes: tuple[ConflictingPackage, ...]) -> list[Check]:
    """Warn of each package that could be imported in the place of ours."""
    if not namesakes:
        return [Check(name="other autotune", state="ok", finding="none that Python could import in place of this one")]
    return [
        Check(
            name="other autotune",
            state="warning",
            finding=f"{one.path}{f' (of {one.distribution})' if one.distribution else ''}, and ours at {PACKAGE_DIR}",
            fix=_fix_namesake(one),
        )
        for one in namesakes
    ]


def _fix_namesake(one: ConflictingPackage) -> str:
    if not one.distribution:
        return "Python imports whichever comes first: rename it, or keep its folder out of PYTHONPATH and sys.path"
    if one.path == PACKAGE_DIR.resolve():
        return f"their files are mixed: pip uninstall {one.distribution}, then pip install --force-reinstall dltune"
    return f"Python imports whichever comes first: pip uninstall {one.distribution}, or give it its own environment"


def _check_isolation(containment: SandboxSupport) -> tuple[Check, ...]:
    """Say of each wall whether it is in force, and what stands in for it where it is not."""
    walls = (
        (
            containment.own_shm,
            "private /dev/shm",
            "shared; use is read as a difference, names go by owner",
        ),
        (containment.own_pids, "process namespace", "shared; processes are found by a mark in their environment"),
        (containment.cgroup is not None, "memory cgroup", "none; memory is watched every 50 ms"),
    )
    return tuple(
        Check(name=name, state="ok", finding="in force around each trial")
        if stands
        else Check(name=name, state="ok", finding=f"{instead} ({_find_reason(containment, name)})")
        for stands, name, instead in walls
    )


def _find_reason(containment: SandboxSupport, wall: str) -> str:
    reasons = (reason.partition(": ") for reason in containment.missing)
    return next((why for name, _, why in reasons if name == wall), "not asked for")


def has_problem(checks: Iterable[Check]) -> bool:
    """Tell whether tuning is impossible."""
    return any(check.state == "problem" for check in checks)


def describe_checks(checks: Iterable[Check]) -> str:
    """Write the diagnosis as a table for people, each fix below its finding."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<18} {check.finding}")
        if check.fix:
            lines.append(f"{'':<27} -> {check.fix}")
    return "\n".join(lines)
