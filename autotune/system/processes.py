"""Processes as procfs shows them: who descends from whom, and what memory each takes; the standard library only."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from autotune.system.kernel_files import PROC, read_text

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
NANOSECONDS: Final = 1e9  # in a second
CLEANERS: Final = (b"torch_shm_manager", b"multiprocessing.resource_tracker")


def list_tree(pid: int, proc: Path = PROC) -> list[int]:
    """List a process and its living descendants by parentage, the root first."""
    found = [pid]
    for parent in found:
        found.extend(_read_children(parent, proc))
    return found


def _read_children(pid: int, proc: Path) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            text = (task / "children").read_text()
            children.extend(int(child) for child in text.split())
    return children


def count_threads() -> int:
    """Count the threads of this process, also those that Python knows nothing of; 0 where the system does not tell."""
    try:
        return len(list((PROC / "self" / "task").iterdir()))
    except OSError:
        return 0


def read_thread_seconds(pid: int, proc: Path = PROC) -> dict[int, float]:
    """Read the CPU seconds of each thread of a process; its first has its number. Nothing where that is not told."""
    try:
        tasks = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return {}
    spent = {int(task.name): read_text(task / "schedstat").split() for task in tasks}
    return {thread: int(counts[0]) / NANOSECONDS for thread, counts in spent.items() if counts}


def is_cleaner(pid: int, proc: Path = PROC) -> bool:
    """Tell whether a process is there to remove the names that dead ones leave in /dev/shm."""
    with contextlib.suppress(OSError):
        command = (proc / str(pid) / "cmdline").read_bytes()
        return any(cleaner in command for cleaner in CLEANERS)
    return False


def read_smaps(pid: int | str, proc: Path = PROC) -> Counter[str]:
    """Read the sizes in a process's `smaps_rollup`, in bytes, at about 2 ms; 0 for those that are not told."""
    sizes: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            key, _, rest = line.partition(":")
            if rest.endswith("kB"):
                sizes[key] = int(rest.split()[0]) * 1024
    return sizes


def read_resident(pid: int | str, proc: Path = PROC) -> tuple[int, int]:
    """Read a process's resident bytes, and how many of them are files or shared memory; zeros where it is gone."""
    with contextlib.suppress(OSError, ValueError):
        _, resident, shared, *_ = (proc / str(pid) / "statm").read_text().split()
        return int(resident) * PAGE_BYTES, int(shared) * PAGE_BYTES
    return 0, 0


def measure_pss(pids: Iterable[int], proc: Path = PROC) -> int:
    """Measure the memory of processes exactly, in bytes, without /dev/shm, which is counted where it lies."""
    sizes = (read_smaps(pid, proc) for pid in pids)
    return sum(max(0, size["Pss"] - size["Pss_Shmem"]) for size in sizes)


def memory_upper_bound(pids: Iterable[int], proc: Path = PROC) -> int:
    """Bound the same memory from above, cheaply: pages shared since a fork count once per process."""
    residents = (read_resident(pid, proc) for pid in pids)
    return sum(resident - shared for resident, shared in residents)
