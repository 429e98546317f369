"""`dltune doctor`: check the environment, and give the fix for each problem."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from autotune.cli.console import exit_on_error, print_result
from autotune.cli.options import epilog, option
from autotune.system.software import MAX_TMPDIR_BYTES, find_tmpdir
from autotune.units import format_bytes

if TYPE_CHECKING:
    from autotune.system.cgroups import CpuThrottling
    from autotune.system.machine import MachineProfile
    from autotune.system.software import TorchVersion

MIN_SHM_BYTES: Final = 256 * 2**20  # a container's usual 64 MiB holds two batches of 32 images of 1 MiB
MIN_MEMORY_BYTES: Final = 2**30  # a training process holds a third of it before its first batch
MIN_OPEN_FILES: Final = 4096  # 1,024 is a usual soft limit: about 60 workers, or a few hundred tensors in flight
MAX_THROTTLED_SHARE: Final = 0.01  # of periods; starting workers alone uses up fewer
WHOLE_CPUS: Final = (
    "a used-up quota stops all workers at once: request whole CPUs (docker --cpuset-cpus, Slurm --cpus-per-task, "
    "Kubernetes' static CPU manager) or a larger quota (docker --cpus, limits.cpu), and tune under training's quota"
)
LARGER_SHM: Final = (
    "workers return batches through it: docker run --shm-size=8g; in Kubernetes a volume emptyDir: {medium: Memory} "
    "at /dev/shm; on a Slurm node its administrator: mount -o remount,size=8G /dev/shm"
)
LARGER_MEMORY: Final = "request more: docker run --memory=8g, Kubernetes resources.limits.memory: 8Gi, Slurm --mem=8G"
SLOW_WORKERS: Final = (
    "each worker unpickles the dataset, collate_fn and worker_init_fn, and may import your modules: use "
    "persistent_workers=True, or multiprocessing_context='fork' if none of your threads holds a lock"
)


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    state: str  # `ok`, `warning` (costs speed or certainty) or `problem` (tuning is impossible)
    finding: str
    fix: str = ""


@click.command(
    params=[option("--json", "Print JSON.")],
    epilog=epilog("dltune doctor", codes="0 tuning can start; 1 it cannot; 2 error"),
)
def doctor(json: bool) -> None:
    """Check the environment: torch, machine, container and folders.

    Run it where training runs. A warning costs speed or certainty; a problem makes tuning impossible.
    """
    with exit_on_error(exit_code=2):
        from importlib.metadata import packages_distributions

        from autotune.system.cgroups import read_cpu_throttling
        from autotune.system.machine import read_gpus, read_machine
        from autotune.system.software import read_start_method_in_force, read_torch

        found = [
            *check_machine(read_machine(), read_cpu_throttling()),
            *check_python(read_torch(), read_gpus(), read_start_method_in_force()),
            *check_folders(find_tmpdir(), Path.cwd()),
            check_packages([str(Path.cwd()), *sys.path], packages_distributions().get("autotune", ())),
        ]
        arrow = f"\n{'':<27} -> "
        lines = [f"{one.state:<8} {one.name:<18} {one.finding}" + (one.fix and arrow + one.fix) for one in found]
        print_result(dumps([one._asdict() for one in found], indent=2) if json else "\n".join(lines))
    if any(one.state == "problem" for one in found):
        sys.exit(1)


def _warn(name: str, finding: str, fix: str, *, is_bad: Any) -> Finding:
    return Finding(name, "warning", finding, fix) if is_bad else Finding(name, "ok", finding)


def check_machine(machine: MachineProfile, quotas: Iterable[CpuThrottling]) -> Iterator[Finding]:
    """Check CPUs and the most used up of their quotas, memory, /dev/shm and the limit of open files."""
    has_quota = machine.usable_cpus < machine.affinity_cpus
    cpus = f"{machine.usable_cpus:g} of {os.cpu_count() or 1} usable ({'cgroup' if has_quota else 'affinity'})"
    yield _warn("CPUs", cpus, WHOLE_CPUS, is_bad=has_quota)
    worst = max((one for one in quotas if one.periods), key=lambda one: one.throttled_share, default=None)
    if worst is not None:
        share = f"{worst.throttled_share:.1%} of {worst.periods:,} periods"
        yield _warn("CPU throttling", share, WHOLE_CPUS, is_bad=worst.throttled_share > MAX_THROTTLED_SHARE)
    available, limit = machine.memory_available_bytes, machine.memory_limit_bytes
    memory = f"{format_bytes(available)} of {format_bytes(limit)} available"
    others = "" if limit < 2 * MIN_MEMORY_BYTES else "other processes use it: end them, or "
    yield _warn("memory", memory, f"{others}{LARGER_MEMORY}", is_bad=available < MIN_MEMORY_BYTES)
    free, size = machine.shm_free_bytes, machine.shm_limit_bytes
    shm, fix = f"{format_bytes(free)} of {format_bytes(size)} free", LARGER_SHM
    if not machine.shm_writable:
        shm, fix = "missing or read-only", "only num_workers=0 works: mount it writable (docker --shm-size=1g)"
    elif size >= 2 * MIN_SHM_BYTES:
        fix = "list it with ls -l /dev/shm, and remove the files of dead jobs"
    yield _warn("/dev/shm", shm, fix, is_bad=free < MIN_SHM_BYTES or not machine.shm_writable)
    fix = f"ulimit -n {MIN_OPEN_FILES} in the shell that trains and tunes; or sharing_strategy=file_system"
    yield _warn("open files", f"{machine.nofile_limit:,}", fix, is_bad=machine.nofile_limit < MIN_OPEN_FILES)


def check_python(torch: TorchVersion | None, gpus: tuple[str, ...], start_method: str) -> Iterator[Finding]:
    """Check torch, whether it can use the GPUs, and how workers start."""
    build = "install the build for your GPU: https://pytorch.org/get-started"
    if torch is None:
        yield Finding("torch", "problem", "not installed", build)
    else:
        cuda = f"CUDA {torch.cuda}" if torch.cuda else "built without CUDA"
        version = f"{torch.version}, {cuda}; {', '.join(gpus) or 'no NVIDIA GPU'}"
        yield _warn("torch", version, build, is_bad=gpus and torch.cuda is None)
    method = f"{start_method}, the default of Python {platform.python_version()} on {platform.system()}"
    yield _warn("start method", method, SLOW_WORKERS, is_bad=start_method != "fork")


def check_folders(temporary: str, here: Path) -> Iterator[Finding]:
    """Check the folder for temporary files, empty if there is none, and the current folder."""
    fix = f"workers hang with a path above {MAX_TMPDIR_BYTES} bytes (names of sockets): export TMPDIR=/tmp"
    if temporary:
        yield _warn("TMPDIR", temporary, fix, is_bad=len(os.fsencode(temporary)) > MAX_TMPDIR_BYTES)
    else:
        yield Finding("TMPDIR", "problem", "no folder is writable", "export TMPDIR=/path/to/a/writable/folder")
    if os.access(here, os.W_OK):  # also whether its file system is read-only
        yield Finding("this folder", "ok", "writable")
    else:
        yield Finding("this folder", "problem", f"{here} is read-only", "change the folder, or pass another --output")


def check_packages(folders: Iterable[str], installed: Iterable[str]) -> Finding:
    """Find other packages and modules named autotune: Python imports the first, and PyPI has one of that name."""
    files = [Path(folder, name) for folder in folders for name in ("autotune/__init__.py", "autotune.py")]
    ours = Path(__file__).resolve().parents[1] / "__init__.py"
    others = {path.resolve() for path in files if os.path.isfile(path)} - {ours}  # noqa: PTH113  # no error if unreadable
    names = {*installed} - {"dltune"}
    found = ", ".join([*sorted(map(str, others)), *sorted(f"distribution {name}" for name in names)])
    fix = f"Python imports the first one: rename it, or pip uninstall {' '.join(sorted(names)) or 'its package'}, then "
    return _warn("other autotune", found or "none", f"{fix}install dltune again", is_bad=found)
