"""Processes as /proc describes them: descendants, threads and memory; and what the kernel does when a parent ends.

A file that cannot be read counts as empty. Folders are parameters for tests. Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
SHM: Final = Path("/dev/shm")
DEV: Final = Path("/dev")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
CLEANERS: Final = ("torch_shm_manager", "multiprocessing.resource_tracker")
TRIAL_VARIABLE: Final = "DLTUNE_TRIAL"  # in the environment of every process of a trial
STACK_SIGNAL: Final = signal.SIGRTMIN + 10  # at which a process of a trial dumps its stacks; nobody else uses it
STACKS_FILE: Final = "stacks"  # in the temporary folder of the trial
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def read_text(path: Path) -> str:
    """Read a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Read a file that contains one number; None if it contains something else."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_numbers(path: Path) -> dict[str, int]:
    """Read a file of lines such as `nr_periods 12`."""
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()}


def read_field(path: Path, name: str) -> str | None:
    """Return a value of a file of lines such as `MemTotal:  12 kB`; None if it is missing or empty."""
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None) or None


def _list_threads(pid: int | str, proc: Path) -> list[Path]:
    try:
        return list((proc / str(pid) / "task").iterdir())
    except OSError:
        return []


def list_tree(pid: int, proc: Path = PROC) -> list[int]:
    """List a process and its living descendants, the root first."""
    found = [pid]
    for parent in found:
        found += [
            int(child) for thread in _list_threads(parent, proc) for child in read_text(thread / "children").split()
        ]
    return found


def count_threads() -> int:
    """Count the threads of this process, including those of native libraries; 0 if unknown."""
    return len(_list_threads("self", PROC))


def read_thread_seconds(pid: int, proc: Path = PROC) -> dict[int, float]:
    """Return the CPU time of each thread of a process, in seconds, by thread id; empty if unknown."""
    spent = {int(thread.name): read_text(thread / "schedstat").split() for thread in _list_threads(pid, proc)}
    return {thread: int(nanoseconds[0]) * 1e-9 for thread, nanoseconds in spent.items() if nanoseconds}


def is_cleaner(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process removes the names that dead processes leave in /dev/shm."""
    command = read_text(proc / str(pid) / "cmdline")
    return any(cleaner in command for cleaner in CLEANERS)


def read_smaps(pid: int | str, proc: Path = PROC) -> Counter[str]:
    """Return the sizes in a process's `smaps_rollup`, in bytes; empty if it is gone. Takes about 2 ms."""
    lines = read_text(proc / str(pid) / "smaps_rollup").splitlines()
    pairs = (line.split() for line in lines if line.endswith("kB"))
    return Counter({key.rstrip(":"): int(size) * 1024 for key, size, _ in pairs})


def read_resident(pid: int | str, proc: Path = PROC) -> tuple[int, int]:
    """Return a process's resident bytes, and how many of them are files or shared memory; zeros if it is gone."""
    pages = read_text(proc / str(pid) / "statm").split()
    return (int(pages[1]) * PAGE_BYTES, int(pages[2]) * PAGE_BYTES) if pages else (0, 0)


def measure_pss(pids: Iterable[int], proc: Path = PROC) -> int:
    """Return the exact memory of processes in bytes, with the shared memory that they have mapped."""
    return sum(read_smaps(pid, proc)["Pss"] for pid in pids)


def memory_upper_bound(pids: Iterable[int], proc: Path = PROC) -> int:
    """Return a cheap upper bound of the memory of processes without shared memory: shared pages count once each."""
    residents = (read_resident(pid, proc) for pid in pids)
    return sum(resident - shared for resident, shared in residents)


def read_session(pid: int, proc: Path = PROC) -> int:
    """Return the session of a process; 0 if it is gone."""
    fields = read_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[3]) if len(fields) > 3 else 0


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread ends that started it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose own parents end."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
