"""Reads /proc and other files of the kernel: processes, their memory, and tensors in shared memory.

A file that cannot be read counts as empty. Folders are parameters for tests. Only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
SHM: Final = Path("/dev/shm")
DEV: Final = Path("/dev")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
CLEANERS: Final = ("torch_shm_manager", "multiprocessing.resource_tracker")


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
    """Return the exact memory of processes, in bytes, without /dev/shm."""
    sizes = (read_smaps(pid, proc) for pid in pids)
    return sum(max(0, size["Pss"] - size["Pss_Shmem"]) for size in sizes)


def memory_upper_bound(pids: Iterable[int], proc: Path = PROC) -> int:
    """Return a cheap upper bound of the same memory: pages shared since a fork count once per process."""
    residents = (read_resident(pid, proc) for pid in pids)
    return sum(resident - shared for resident, shared in residents)


def remove_shm_segments(pids: Iterable[int], spared: Collection[str] = (), shm: Path = SHM) -> None:
    """Remove torch's names in /dev/shm that these dead processes left, except those in `spared`."""
    for path in (path for pid in pids for path in shm.glob(f"torch_{pid}_*") if path.name not in spared):
        with contextlib.suppress(OSError):
            path.unlink()


def list_mapped_segments(proc: Path = PROC) -> set[str]:
    """Return torch's names in /dev/shm that this process has mapped; torch aborts if others remove them."""
    lines = read_text(proc / "self" / "maps").splitlines()
    return {Path(line.split(maxsplit=5)[5].removesuffix(" (deleted)")).name for line in lines if "/torch_" in line}
