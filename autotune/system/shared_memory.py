"""Tensors in /dev/shm: which ones some processes use, their size, and the removal of names that nobody else removes.

Process IDs repeat across containers that share /dev/shm (`--ipc=host`), and torch's names contain nothing else: so a
name is removed only if a process of this run has mapped or opened it, or if it has no content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from autotune.system.processes import PROC, SHM, read_text

MIN_EMPTY_SECONDS: Final = 0.5  # a new segment has no content for some microseconds
DELETED: Final = " (deleted)"  # follows the path of a file without a name


def list_used_segments(pid: int | str = "self", proc: Path = PROC) -> set[str]:
    """Return torch's names in /dev/shm that a process has mapped or opened."""
    lines = (line for line in read_text(proc / str(pid) / "maps").splitlines() if "/torch_" in line)
    paths = [line.split(maxsplit=5)[5] for line in lines]
    with contextlib.suppress(OSError):
        for descriptor in (proc / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                paths.append(str(descriptor.readlink()))
    return {Path(path.removesuffix(DELETED)).name for path in paths if "/torch_" in path}


def list_empty_segments(pids: Collection[int], shm: Path = SHM) -> set[str]:
    """Return names of these processes without content: torch leaves them where /dev/shm is full."""
    found = set()
    for name in list_names(pids, shm=shm):
        with contextlib.suppress(OSError):
            status = (shm / name).stat()
            if name.startswith("torch_") and not status.st_blocks and time.time() - status.st_ctime > MIN_EMPTY_SECONDS:
                found.add(name)
    return found


def remove_segments(names: Iterable[str], spared: Collection[str] = (), shm: Path = SHM) -> None:
    """Remove names in /dev/shm."""
    for name in set(names).difference(spared):
        with contextlib.suppress(OSError):
            (shm / name).unlink()


def measure_segments(pids: Iterable[int], names: Iterable[str], proc: Path = PROC, shm: Path = SHM) -> tuple[int, int]:
    """Measure the files in /dev/shm that processes use: mapped, open, or known by name, as batches on their way are.

    Args:
        pids: The processes.
        names: Names in /dev/shm that are theirs.
        proc: Folder of processes.
        shm: Folder of shared memory.

    Returns:
        Bytes of all files, and of those that no process has mapped.
    """
    try:
        device = shm.stat().st_dev
    except OSError:
        return 0, 0
    mapped: dict[int, int] = {}
    others: dict[int, int] = {}
    for pid in pids:
        for line in read_text(proc / str(pid) / "maps").splitlines():
            addresses, _, _, _, inode, *rest = line.split(maxsplit=5)
            if rest and rest[0].startswith(f"{shm}/"):
                first, last = (int(address, 16) for address in addresses.split("-"))
                mapped[int(inode)] = max(mapped.get(int(inode), 0), last - first)
    paths = [shm / name for name in names]
    for pid in pids:
        with contextlib.suppress(OSError):
            paths.extend((proc / str(pid) / "fd").iterdir())
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_dev == device:
                others[status.st_ino] = status.st_blocks * 512
    unmapped = sum(size for inode, size in others.items() if inode not in mapped)
    return sum(others.get(inode, size) for inode, size in mapped.items()) + unmapped, unmapped


def list_names(pids: Collection[int], known: Collection[str] = (), shm: Path = SHM) -> set[str]:
    """Return the names in /dev/shm except known ones and tensors of processes other than these."""
    try:
        names = {path.name for path in shm.iterdir()}.difference(known)
    except OSError:
        return set()
    return {name for name in names if not name.startswith("torch_") or _read_pid(name) in pids}


def _read_pid(name: str) -> int:
    pid = name.split("_")[1]
    return int(pid) if pid.isdecimal() else 0
