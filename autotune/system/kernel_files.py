"""Where the kernel tells about this machine, and how its files are read: one that cannot be read tells nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
CGROUP: Final = Path("/sys/fs/cgroup")
SHM: Final = Path("/dev/shm")
DEV: Final = Path("/dev")


def read_text(path: Path) -> str:
    """Read a file of the kernel's; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Read a file that holds one number; None where it holds something else."""
    try:
        return int(read_text(path))
    except ValueError:
        return None


def read_numbers(path: Path) -> dict[str, int]:
    """Read a file of lines such as `nr_periods 12`."""
    pairs = (line.split() for line in read_text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()}
