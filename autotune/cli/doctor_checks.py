"""What does this machine allow, and what is the exact fix for what stands in the way?"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from autotune.cli.conflicts import PACKAGE_DIR, ConflictingPackage, find_conflicts
from autotune.config import FrozenModel, StartMethod
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.scratch import MAX_TMPDIR_LENGTH
from autotune.system.cgroups import CpuThrottling, read_cpu_throttling
from autotune.system.gpus import read_gpus
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.mounts import Mount, find_mount
from autotune.system.versions import TorchVersion, read_start_method, read_torch
from autotune.units import format_bytes, format_seconds

MIN_SHM_BYTES: Final = 256 * 2**20  # a container's usual 64 MiB holds two batches of 32 images of 1 MiB
MIN_MEMORY_BYTES: Final = 2**30  # a training process holds a third of it before its first batch
MIN_OPEN_FILES: Final = 4096  # 1,024 is a usual soft limit: about 60 workers, or a few hundred tensors in flight
MAX_THROTTLED_SHARE: Final = 0.01  # of periods; a start of workers alone uses up fewer
TORCH_BUILD: Final = "install the build for your GPU: https://pytorch.org/get-started"
WHOLE_CPUS: Final = (
    "a quota stops all workers together when it is used up: ask for whole CPUs (docker --cpuset-cpus, "
    "Kubernetes' static CPU manager, Slurm --cpus-per-task), or for a larger quota (docker --cpus, limits.cpu)"
)
LARGER_QUOTA: Final = (
    "all workers stand still until the next period: raise or drop the quota (docker --cpus, Kubernetes "
    "resources.limits.cpu), or run fewer workers and threads; tune under the quota that training will have"
)
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


class DoctorCheck(FrozenModel):
    """One line of the diagnosis.

    Attributes:
        name: What was looked at.
        state: `ok`, `warning` for what costs speed or certainty, `problem` for what makes tuning impossible.
        finding: What was found.
        fix: What to do about it; empty where nothing needs doing.
    """

    name: str
    state: Literal["ok", "warning", "problem"]
    finding: str
    fix: str = ""


def _line(name: str, finding: str, fix: str = "") -> DoctorCheck:
    """Make a line that is a warning where there is something to fix."""
    return DoctorCheck(name=name, state="warning" if fix else "ok", finding=finding, fix=fix)


def _problem(name: str, finding: str, fix: str) -> DoctorCheck:
    return DoctorCheck(name=name, state="problem", finding=finding, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
    """What is examined, as it was read; `storage` is None where nobody asked, or the system does not tell."""

    machine: MachineProfile
    sandbox: SandboxSupport
    torch: TorchVersion | None
    gpus: tuple[str, ...] = ()
    quotas: tuple[CpuThrottling, ...] = ()
    start_method: StartMethod = "fork"
    storage: Mount | None = None
    conflicts: tuple[ConflictingPackage, ...] = ()


def collect_facts(data: Path | None = None) -> SystemFacts:
    """Read what there is to examine, and where the data lies; raises UsageError where there is no such path."""
    return SystemFacts(
        storage=find_mount(data) if data is not None else None,
        machine=read_machine(),
        sandbox=detect_sandbox(),
        torch=read_torch(),
        gpus=read_gpus(),
        quotas=read_cpu_throttling(),
        start_method=read_start_method(),
        conflicts=find_conflicts(),
    )


def run_checks(found: SystemFacts) -> tuple[DoctorCheck, ...]:
    """Examine what tuning and training will meet here, in the order in which it is shown."""
    return (
        _check_torch(found.torch, found.gpus),
        _line("GPU", ", ".join(found.gpus) or "none that the NVIDIA driver lists: trials run on the CPU"),
        _check_cpus(found.machine),
        _check_throttling(found.quotas),
        _check_memory(found.machine),
        _check_shm(found.machine),
        _check_files(found.machine),
        _check_start_method(found.start_method),
        *([] if found.storage is None else [_check_storage(found.storage)]),
        _check_tmpdir(),
        _check_folder(),
        *_check_conflicts(found.conflicts),
        *_check_sandbox(found.sandbox),
    )


def _check_torch(torch: TorchVersion | None, gpus: tuple[str, ...]) -> DoctorCheck:
    if torch is None:
        return _problem("torch", "not installed", TORCH_BUILD)
    if gpus and torch.cuda is None:
        return _line("torch", f"{torch.version}, built without CUDA: the GPU stays idle", TORCH_BUILD)
    return _line("torch", f"{torch.version}{f', CUDA {torch.cuda}' if torch.cuda is not None else ''}")


def _check_cpus(machine: MachineProfile) -> DoctorCheck:
    finding = f"{machine.usable_cpus:g} of {os.cpu_count() or 1} usable ({machine.cpu_source})"
    return _line("CPUs", finding, WHOLE_CPUS if machine.cpu_source == "cgroup" else "")


def _check_throttling(quotas: tuple[CpuThrottling, ...]) -> DoctorCheck:
    """Say how often a CPU quota was used up; of several the one that was used up most."""
    worst = max((use for use in quotas if use.periods), key=lambda use: use.throttled_share, default=None)
    if worst is None:
        return _line("CPU throttling", "none: no quota has counted any period")
    stopped = f", {format_seconds(worst.throttled_seconds)} in all" if worst.throttled_seconds else ""
    finding = f"{worst.throttled_share:.1%} of {worst.periods:,} periods since the cgroup was made{stopped}"
    return _line("CPU throttling", finding, LARGER_QUOTA if worst.throttled_share > MAX_THROTTLED_SHARE else "")


def _check_memory(machine: MachineProfile) -> DoctorCheck:
    available, limit = machine.memory_available_bytes, machine.memory_limit_bytes
    finding = f"{format_bytes(available)} of {format_bytes(limit)} available"
    if available >= MIN_MEMORY_BYTES:
        return _line("memory", finding)
    others = "" if limit < 2 * MIN_MEMORY_BYTES else "other processes hold it: end them, or "
    return _line("memory", finding, f"{others}{LARGER_MEMORY}")


def _check_shm(machine: MachineProfile) -> DoctorCheck:
    if not machine.shm_writable:
        fix = "mount it writable (docker --tmpfs /dev/shm, or --shm-size=1g); until then only num_workers=0 works"
        return _line("/dev/shm", "missing or read-only", fix)
    finding = f"{format_bytes(machine.shm_free_bytes)} of {format_bytes(machine.shm_limit_bytes)} free"
    if machine.shm_free_bytes >= MIN_SHM_BYTES:
        return _line("/dev/shm", finding)
    is_filled = machine.shm_limit_bytes >= 2 * MIN_SHM_BYTES
    fix = "it is filled: look with ls -l /dev/shm, and remove what dead jobs have left" if is_filled else LARGER_SHM
    return _line("/dev/shm", finding, fix)


def _check_files(machine: MachineProfile) -> DoctorCheck:
    fix = f"ulimit -n {MIN_OPEN_FILES} in the shell that trains and tunes; or sharing_strategy=file_system"
    return _line("open files", f"{machine.nofile_limit:,}", fix if machine.nofile_limit < MIN_OPEN_FILES else "")


def _check_start_method(method: StartMethod) -> DoctorCheck:
    version = ".".join(platform.python_version_tuple()[:2])
    finding = f"{method}, the default of Python {version} on {platform.system()}"
    if method != "fork":
        return _line("start method", finding, SLOW_WORKERS)
    sharing = "workers start at once and share the dataset's memory until somebody writes"
    return _line("start method", f"{finding}: {sharing}")


def _check_storage(storage: Mount) -> DoctorCheck:
    """Say what answers the reads of a dataset, and what that means for its workers."""
    finding = f"{storage.path}: {storage.filesystem} from {storage.device}"
    if storage.kind in WAITING_READS:
        return _line("data", finding, WAITING_READS[storage.kind])
    if storage.kind == "memory":
        return _line("data", f"{finding}: in memory, which counts against the limit above")
    if storage.rotational:
        fix = "random reads wait for its head: copy the data to an SSD, or read few large files in order"
        return _line("data", f"{finding}, a disk that turns", fix)
    known = "which does not turn" if storage.rotational is False else "and nothing tells whether that disk turns"
    return _line("data", f"{finding}, {known}")


def _check_tmpdir() -> DoctorCheck:
    folder = tempfile.gettempdir()
    if len(folder) <= MAX_TMPDIR_LENGTH:
        return _line("TMPDIR", folder)
    fix = "training hangs with a path of 80 characters or more (socket names end at 108): export TMPDIR=/tmp"
    return _line("TMPDIR", f"{folder} ({len(folder)} characters)", fix)


def _check_folder() -> DoctorCheck:
    here = Path.cwd()
    if os.access(here, os.W_OK) and not os.statvfs(here).f_flag & os.ST_RDONLY:
        return _line("this folder", "writable")
    fix = "start dltune where it may write, or name other places with --output and --storage"
    return _problem("this folder", f"{here} is read-only", fix)


def _check_conflicts(conflicts: tuple[ConflictingPackage, ...]) -> list[DoctorCheck]:
    """Warn of each package that could be imported in the place of ours."""
    if not conflicts:
        return [_line("other autotune", "none that Python could import in place of this one")]
    return [_line("other autotune", f"{_describe(one)}, and ours at {PACKAGE_DIR}", _fix(one)) for one in conflicts]


def _describe(one: ConflictingPackage) -> str:
    return f"{one.path} (of {one.distribution})" if one.distribution else str(one.path)


def _fix(one: ConflictingPackage) -> str:
    if not one.distribution:
        return "Python imports whichever comes first: rename it, or keep its folder out of PYTHONPATH and sys.path"
    if one.path == PACKAGE_DIR.resolve():
        return f"their files are mixed: pip uninstall {one.distribution}, then pip install --force-reinstall dltune"
    return f"Python imports whichever comes first: pip uninstall {one.distribution}, or give it its own environment"


def _check_sandbox(sandbox: SandboxSupport) -> list[DoctorCheck]:
    """Say of each part of a sandbox whether it is in force, and what stands in for it where it is not."""
    reasons = {name: why for name, _, why in (reason.partition(": ") for reason in sandbox.missing)}
    parts = (
        (sandbox.own_shm, "private /dev/shm", "shared; use is read as a difference, names go by owner"),
        (sandbox.own_pids, "process namespace", "shared; processes are found by a mark in their environment"),
        (sandbox.cgroup is not None, "memory cgroup", "none; memory is watched every 50 ms"),
    )
    return [
        _line(name, "in force around each trial" if stands else f"{instead} ({reasons.get(name, 'not asked for')})")
        for stands, name, instead in parts
    ]
