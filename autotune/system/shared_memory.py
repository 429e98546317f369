"""The names that torch gives to tensors in shared memory, and the end of those that dead processes have left."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from pathlib import Path

from autotune.system.kernel_files import PROC, SHM, read_text


def remove_shm_segments(pids: Iterable[int], spared: Collection[str] = (), shm: Path = SHM) -> None:
    """Remove the names that dead processes left behind, but for those spared; those of others are never touched."""
    for pid in pids:
        for path in shm.glob(f"torch_{pid}_*"):
            if path.name not in spared:
                with contextlib.suppress(OSError):
                    path.unlink()


def list_mapped_segments(proc: Path = PROC) -> set[str]:
    """List the names that this process has in use: torch removes these itself, and aborts where they are gone."""
    lines = read_text(proc / "self" / "maps").splitlines()
    return {Path(line.split(maxsplit=5)[5].removesuffix(" (deleted)")).name for line in lines if "/torch_" in line}
