"""Processes by parentage, as procfs tells them; the standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


CLEANERS: Final = (b"torch_shm_manager", b"multiprocessing.resource_tracker")


def list_tree(pid: int, proc: Path = PROC) -> list[int]:
    """List a process and its living descendants by parentage.

    Args:
        pid: The root of the tree.
        proc: Where procfs is mounted.

    Returns:
        Process ids, the root first.
    """
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


def is_cleaner(pid: int, proc: Path = PROC) -> bool:
    """Tell whether a process is there to remove the names that dead ones leave in /dev/shm.

    Args:
        pid: The process.
        proc: Where procfs is mounted.
    """
    with contextlib.suppress(OSError):
        command = (proc / str(pid) / "cmdline").read_bytes()
        return any(cleaner in command for cleaner in CLEANERS)
    return False
