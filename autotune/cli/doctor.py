"""`dltune doctor`: check the environment, and give the fix for each problem."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from autotune.cli.console import exit_on_error, print_result
from autotune.cli.options import epilog
from autotune.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from autotune.system.cgroups import CpuThrottling
    from autotune.system.machine import MachineProfile
    from autotune.system.mounts import Mount
    from autotune.system.versions import TorchVersion

PACKAGE: Final = Path(__file__).resolve().parents[1]
MIN_SHM_BYTES: Final = 256 * 2**20  # a container's usual 64 MiB holds two batches of 32 images of 1 MiB
MIN_MEMORY_BYTES: Final = 2**30  # a training process holds a third of it before its first batch
MIN_OPEN_FILES: Final = 4096  # 1,024 is a usual soft limit: about 60 workers, or a few hundred tensors in flight
MAX_THROTTLED_SHARE: Final = 0.01  # of periods; starting workers alone uses up fewer
MAX_TMPDIR_LENGTH: Final = 79  # names of sockets end at 108 characters
WHOLE_CPUS: Final = (
    "a used-up quota stops all workers at once: request whole CPUs (docker --cpuset-cpus, Kubernetes' static CPU "
    "manager, Slurm --cpus-per-task), or a larger quota (docker --cpus, limits.cpu)"
)
LARGER_QUOTA: Final = (
    "all workers stop until the next period: raise or drop the quota (docker --cpus, Kubernetes resources.limits.cpu), "
    "or run fewer workers and threads; tune under the quota that training will have"
)
LARGER_SHM: Final = (
    "workers return batches through it: docker run --shm-size=8g; in Kubernetes a volume emptyDir: {medium: Memory} "
    "mounted at /dev/shm; on a Slurm node its administrator: mount -o remount,size=8G /dev/shm"
)
LARGER_MEMORY: Final = (
    "request more: docker run --memory=8g, Kubernetes resources.limits.memory: 8Gi, Slurm --mem=8G; /dev/shm counts"
)
SLOW_WORKERS: Final = (
    "workers start slowly: each imports your modules and unpickles the dataset, collate_fn and worker_init_fn. Use "
    "persistent_workers=True, or multiprocessing_context='fork' if none of your threads holds a lock"
)
MANY_WORKERS: Final = (
    "many more workers than CPUs can help: leave --max-workers unset, or copy the data to a local disk"
)
SLOW_STORAGE: Final = {
    "network": f"reads wait for a server; {MANY_WORKERS}",
    "program": f"a program answers reads, often from a network; {MANY_WORKERS}",
    "overlay": "reads pass through container layers: mount the data as a volume (docker -v, Kubernetes volumes, "
    "Apptainer --bind)",
}


class Finding(NamedTuple):
    """One line of the diagnosis.

    Attributes:
        name: What was checked.
        state: `ok`, `warning` if it costs speed or certainty, `problem` if tuning is impossible.
        finding: What was found.
        fix: What to do about it; empty if nothing.
    """

    name: str
    state: str
    finding: str
    fix: str = ""


@click.command(
    epilog=epilog(
        "dltune doctor --data /data/images",
        codes="0 tuning can start, perhaps with warnings; 1 a problem makes it impossible; 2 PATH does not exist",
    )
)
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="Also check the storage of the dataset.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(data: Path | None, as_json: bool) -> None:
    """Check the environment: torch, machine, container and folders.

    Run it where training runs. A warning costs speed or certainty; a problem makes tuning impossible.
    """
    with exit_on_error():
        from importlib.metadata import packages_distributions

        from autotune.system.cgroups import read_cpu_throttling
        from autotune.system.gpus import read_gpus
        from autotune.system.machine import read_machine
        from autotune.system.mounts import find_mount
        from autotune.system.versions import read_start_method, read_torch

        found = [
            check_torch(read_torch(), read_gpus()),
            *check_machine(read_machine()),
            check_throttling(read_cpu_throttling()),
            check_start_method(read_start_method()),
            *([] if data is None or (mount := find_mount(data)) is None else [check_storage(mount)]),
            *check_folders(tempfile.gettempdir(), Path.cwd()),
            check_packages([str(Path.cwd()), *sys.path], packages_distributions().get("autotune", ())),
        ]
        print_result(json.dumps([one._asdict() for one in found], indent=2) if as_json else describe(found))
    if any(one.state == "problem" for one in found):
        sys.exit(1)


def describe(found: Iterable[Finding]) -> str:
    """Write the diagnosis as a table, each fix below its finding."""
    rows = [(f"{one.state:<8} {one.name:<18} {one.finding}", one.fix) for one in found]
    return "\n".join(line + (f"\n{'':<27} -> {fix}" if fix else "") for line, fix in rows)


def _warn(name: str, finding: str, fix: str, *, is_bad: Any) -> Finding:
    return Finding(name, "warning", finding, fix) if is_bad else Finding(name, "ok", finding)


def check_torch(torch: TorchVersion | None, gpus: tuple[str, ...]) -> Finding:
    """Check torch, and whether it can use the GPUs."""
    build = "install the build for your GPU: https://pytorch.org/get-started"
    if torch is None:
        return Finding("torch", "problem", "not installed", build)
    devices = ", ".join(gpus) or "no NVIDIA GPU"
    version = f"{torch.version}{f', CUDA {torch.cuda}' if torch.cuda else ', built without CUDA'}; {devices}"
    return _warn("torch", version, build, is_bad=gpus and torch.cuda is None)


def check_machine(machine: MachineProfile) -> Iterator[Finding]:
    """Check CPUs, memory, /dev/shm and the limit of open files."""
    cpus = f"{machine.usable_cpus:g} of {os.cpu_count() or 1} usable ({machine.cpu_source})"
    yield _warn("CPUs", cpus, WHOLE_CPUS, is_bad=machine.cpu_source == "cgroup")
    available, limit = machine.memory_available_bytes, machine.memory_limit_bytes
    memory = f"{format_bytes(available)} of {format_bytes(limit)} available"
    others = "" if limit < 2 * MIN_MEMORY_BYTES else "other processes use it: end them, or "
    yield _warn("memory", memory, f"{others}{LARGER_MEMORY}", is_bad=available < MIN_MEMORY_BYTES)
    free, size = machine.shm_free_bytes, machine.shm_limit_bytes
    if machine.shm_writable:
        is_full = size >= 2 * MIN_SHM_BYTES
        fix = "list it with ls -l /dev/shm, and remove what dead jobs have left" if is_full else LARGER_SHM
        shm = f"{format_bytes(free)} of {format_bytes(size)} free"
        yield _warn("/dev/shm", shm, fix, is_bad=free < MIN_SHM_BYTES)
    else:
        fix = "only num_workers=0 works: mount it writable (docker --tmpfs /dev/shm, or --shm-size=1g)"
        yield Finding("/dev/shm", "warning", "missing or read-only", fix)
    fix = f"ulimit -n {MIN_OPEN_FILES} in the shell that trains and tunes; or sharing_strategy=file_system"
    yield _warn("open files", f"{machine.nofile_limit:,}", fix, is_bad=machine.nofile_limit < MIN_OPEN_FILES)


def check_throttling(quotas: Iterable[CpuThrottling]) -> Finding:
    """Check how often a CPU quota was used up; the worst of several counts."""
    worst = max((use for use in quotas if use.periods), key=lambda use: use.throttled_share, default=None)
    if worst is None:
        return Finding("CPU throttling", "ok", "none: no CPU quota")
    stopped = f", {format_seconds(worst.throttled_seconds)} in total" if worst.throttled_seconds else ""
    finding = f"{worst.throttled_share:.1%} of {worst.periods:,} periods{stopped}"
    return _warn("CPU throttling", finding, LARGER_QUOTA, is_bad=worst.throttled_share > MAX_THROTTLED_SHARE)


def check_start_method(method: str) -> Finding:
    """Check how workers start by default."""
    version = ".".join(platform.python_version_tuple()[:2])
    finding = f"{method}, the default of Python {version} on {platform.system()}"
    return _warn("start method", finding, SLOW_WORKERS, is_bad=method != "fork")


def check_storage(storage: Mount) -> Finding:
    """Check what answers the reads of a dataset."""
    finding = f"{storage.path}: {storage.filesystem} on {storage.device}"
    if storage.rotational and storage.kind == "local":
        fix = "random reads are slow: copy the data to an SSD, or read few large files in order"
        return Finding("data", "warning", f"{finding}, rotational disk (HDD)", fix)
    return _warn("data", finding, SLOW_STORAGE.get(storage.kind, ""), is_bad=storage.kind in SLOW_STORAGE)


def check_folders(temporary: str, here: Path) -> Iterator[Finding]:
    """Check the folder for temporary files and the current folder."""
    fix = "training hangs with a path of 80 characters or more (socket names end at 108): export TMPDIR=/tmp"
    yield _warn("TMPDIR", temporary, fix, is_bad=len(temporary) > MAX_TMPDIR_LENGTH)
    if os.access(here, os.W_OK) and not os.statvfs(here).f_flag & os.ST_RDONLY:
        yield Finding("this folder", "ok", "writable")
    else:
        yield Finding("this folder", "problem", f"{here} is read-only", "change the folder, or pass another --output")


def check_packages(folders: Iterable[str], installed: Iterable[str]) -> Finding:
    """Find other packages and modules named autotune: Python imports the first, and PyPI has one of that name."""
    files = [Path(folder, name) for folder in folders for name in ("autotune/__init__.py", "autotune.py")]
    others = {str(path.resolve()) for path in files if os.path.isfile(path)} - {str(PACKAGE / "__init__.py")}  # noqa: PTH113  # False without permission
    names = {*installed} - {"dltune"}
    fix = f"Python imports the first one: rename it, or pip uninstall {' '.join(sorted(names)) or 'its package'}, then "
    fix += "pip install --force-reinstall dltune"
    found = ", ".join([*sorted(others), *sorted(f"distribution {name}" for name in names)])
    return _warn("other autotune", found or "none", fix, is_bad=found)
