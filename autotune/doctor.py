"""Says what this machine and container allow, and the exact fix for what stands in the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from autotune.child import LONGEST_TMPDIR
from autotune.containment import Containment
from autotune.machine import MachineProfile
from autotune.schema import Value
from autotune.units import format_bytes

SMALL_SHM: Final = 256 * 2**20  # a container's usual 64 MiB holds two batches of 32 images of 1 MiB
FEW_FILES: Final = 4096  # 1,024 is a usual soft limit: about 60 workers, or a few hundred tensors in flight
State = Literal["ok", "advice", "problem"]


class Check(Value):
    """One line of the diagnosis.

    Attributes:
        name: What was looked at.
        state: `ok`, `advice` for what costs speed or certainty, `problem` for what makes tuning impossible.
        finding: What was found.
        fix: What to do about it; empty where nothing needs doing.
    """

    name: str
    state: State
    finding: str
    fix: str = ""


def examine(machine: MachineProfile, containment: Containment, gpus: Iterable[str] = ()) -> tuple[Check, ...]:
    """Examine what tuning and training will meet here.

    Args:
        machine: What the machine allows.
        containment: The walls that can be put up around trials.
        gpus: Names of the accelerators that the driver lists.

    Returns:
        The checks, in the order in which they are shown.
    """
    return (
        _check_torch(),
        _check_gpus(tuple(gpus)),
        _check_cpus(machine),
        Check(name="memory", state="ok", finding=_describe_memory(machine)),
        _check_shm(machine),
        _check_files(machine),
        _check_tmpdir(),
        _check_folder(),
        *_check_isolation(containment),
    )


def _check_torch() -> Check:
    try:
        return Check(name="torch", state="ok", finding=version("torch"))
    except PackageNotFoundError:
        fix = "install the build for your GPU: https://pytorch.org/get-started"
        return Check(name="torch", state="problem", finding="not installed", fix=fix)


def _check_gpus(gpus: tuple[str, ...]) -> Check:
    if gpus:
        return Check(name="GPU", state="ok", finding=", ".join(gpus))
    return Check(name="GPU", state="ok", finding="none that the NVIDIA driver lists: trials run on the CPU")


def _check_cpus(machine: MachineProfile) -> Check:
    present = os.cpu_count() or 1
    finding = f"{machine.usable_cpus:g} of {present} usable ({machine.cpu_source})"
    if machine.cpu_source == "cgroup":
        fix = "a quota stops all workers together when it is used up: ask for whole CPUs (docker --cpus, limits.cpu)"
        return Check(name="CPUs", state="advice", finding=finding, fix=fix)
    return Check(name="CPUs", state="ok", finding=finding)


def _describe_memory(machine: MachineProfile) -> str:
    return f"{format_bytes(machine.memory_available_bytes)} of {format_bytes(machine.memory_limit_bytes)} available"


def _check_shm(machine: MachineProfile) -> Check:
    finding = f"{format_bytes(machine.shm_free_bytes)} of {format_bytes(machine.shm_limit_bytes)} free"
    if not machine.shm_writable:
        fix = "mount it writable (docker --tmpfs /dev/shm, or --shm-size=1g); until then only num_workers=0 works"
        return Check(name="/dev/shm", state="advice", finding="missing or read-only", fix=fix)
    if machine.shm_free_bytes < SMALL_SHM:
        fix = (
            "workers hand batches over through it: docker run --shm-size=8g, or in Kubernetes a volume "
            "emptyDir: {medium: Memory} mounted at /dev/shm"
        )
        return Check(name="/dev/shm", state="advice", finding=finding, fix=fix)
    return Check(name="/dev/shm", state="ok", finding=finding)


def _check_files(machine: MachineProfile) -> Check:
    finding = f"{machine.nofile_limit:,}"
    if machine.nofile_limit >= FEW_FILES:
        return Check(name="open files", state="ok", finding=finding)
    fix = f"ulimit -n {FEW_FILES} in the shell that trains and tunes; or sharing_strategy=file_system"
    return Check(name="open files", state="advice", finding=finding, fix=fix)


def _check_tmpdir() -> Check:
    folder = tempfile.gettempdir()
    if len(folder) <= LONGEST_TMPDIR:
        return Check(name="TMPDIR", state="ok", finding=folder)
    fix = "training hangs with a path of 80 characters or more (socket names end at 108): export TMPDIR=/tmp"
    return Check(name="TMPDIR", state="advice", finding=f"{folder} ({len(folder)} characters)", fix=fix)


def _check_folder() -> Check:
    here = Path.cwd()
    if os.access(here, os.W_OK) and not os.statvfs(here).f_flag & os.ST_RDONLY:
        return Check(name="this folder", state="ok", finding="writable")
    fix = "start dltune where it may write, or name other places with --output and --storage"
    return Check(name="this folder", state="problem", finding=f"{here} is read-only", fix=fix)


def _check_isolation(containment: Containment) -> tuple[Check, ...]:
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


def _find_reason(containment: Containment, wall: str) -> str:
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
