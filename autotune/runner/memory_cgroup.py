"""A memory cgroup for one trial: a budget that the kernel holds, exact numbers, and the evidence of an OOM kill.

Version 2 moves a process with all its controllers, so a group beside ours is used only where ours limits nothing;
version 1 has a hierarchy for memory alone, and the group lies below ours. Where neither can be written, there is none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from autotune.system.cgroups import walk_ancestors
from autotune.system.processes import CGROUP, PROC, read_text

PREFIX: Final = "dltune-"
EMPTY_SECONDS: Final = 2.0  # until a killed group's processes have left it


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One memory cgroup; its processes join by writing themselves into `cgroup.procs`."""

    folder: Path

    @classmethod
    def make(cls, parent: Path, limit_bytes: int) -> Self:
        """Make a group that the kernel holds to a limit, swap and file cache included; OSError where it may not be.

        The kernel takes file cache back before it kills.
        """
        remove_stale(parent)
        folder = parent / f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        try:
            _set_limit(folder, limit_bytes)
        except OSError:
            folder.rmdir()
            raise
        return cls(folder)

    def list_processes(self) -> list[int]:
        """List the processes in the group, without those that have no number in our process namespace."""
        return [int(line) for line in read_text(self.folder / "cgroup.procs").split() if line != "0"]

    def kill(self) -> None:
        """Kill every process in the group, whatever it calls itself."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for pid in self.list_processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Kill what is left, remove the group, and tell whether it is gone."""
        deadline = time.monotonic() + EMPTY_SECONDS
        while self.folder.is_dir():
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return True
            if time.monotonic() > deadline:
                return False
            self.kill()
            time.sleep(0.01)
        return True


def _set_limit(folder: Path, limit_bytes: int) -> None:
    """Write the limit under the names of either version; swap must not be a way around it."""
    if (folder / "memory.max").exists():
        (folder / "memory.max").write_text(str(limit_bytes))
        optional = {"memory.swap.max": 0, "memory.oom.group": 1}
    else:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        optional = {"memory.memsw.limit_in_bytes": limit_bytes}
    for name, value in optional.items():
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(str(value))


def find_cgroup_parent(proc: Path = PROC, cgroup: Path = CGROUP) -> Path | None:
    """Find the group in which trials may get groups of their own, and in which every limit of ours stays in force."""
    parents = _list_parents(proc, cgroup)
    return next((folder for folder in parents if _is_writable(folder) and _is_writable(folder / "cgroup.procs")), None)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK)


def _list_parents(proc: Path, cgroup: Path) -> Iterator[Path]:
    ours = next(walk_ancestors(proc, cgroup, ""), None)
    if ours is not None:
        if _hands_memory_down(ours):
            yield ours
        elif _hands_memory_down(ours.parent) and not _limits_anything(ours):
            yield ours.parent
    below_v1 = next(walk_ancestors(proc, cgroup, "memory"), None)
    if below_v1 is not None and (below_v1 / "memory.limit_in_bytes").exists():
        yield below_v1


def _hands_memory_down(folder: Path) -> bool:
    return "memory" in read_text(folder / "cgroup.subtree_control").split()


def _limits_anything(folder: Path) -> bool:
    """Tell whether leaving a version 2 group would set a process free of a limit."""
    budgets = (read_text(folder / name).split()[:1] for name in ("cpu.max", "memory.max", "memory.high", "pids.max"))
    return any(limit not in ([], ["max"]) for limit in budgets) or bool(read_text(folder / "cpuset.cpus").strip())


def remove_stale(parent: Path) -> None:
    """Remove the empty groups of runs that were killed before they could."""
    for folder in parent.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                folder.rmdir()
