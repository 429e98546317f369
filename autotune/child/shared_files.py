"""Finds files that a dataset holds open before its workers start.

A forked worker inherits an open file with its position: where one worker reads on, all of them do, and each may get
the data of another. h5py says as much of its own files. Nothing of it shows in a throughput.
"""

from __future__ import annotations

import io
import itertools
import os
import stat
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from autotune.child.workload_loading import LoadedWorkload

MAX_OBJECTS: Final = 1000  # that are looked at; files are held near the surface
MAX_PARTS: Final = 100  # of each list or dict


def warn_of_shared_files(workload: LoadedWorkload) -> str | None:
    """Say that workers will inherit an open file, if there is one; ask before this process has read a sample."""
    if not workload.forks_workers:
        return None
    found = next((name for one in _walk(workload.parts.dataset) if (name := _name_open_file(one))), None)
    where = "__iter__" if workload.kind == "iterable" else "the first call of __getitem__"
    return found and (
        f"The dataset holds an open file ({found}). Forked workers share its handle and may read each other's data, or "
        f"fail, without an error here. Open it in each worker, in {where}."
    )


def _walk(dataset: Any) -> Iterator[Any]:
    """Go through an object and what it holds, level by level, without running any of its code."""
    waiting, seen = deque([dataset]), {id(dataset)}
    while waiting and len(seen) < MAX_OBJECTS:
        one = waiting.popleft()
        yield one
        for part in _list_parts(one):
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)


def _list_parts(one: Any) -> list[Any]:
    if isinstance(one, list | tuple):
        return list(one[:MAX_PARTS])
    held = one if isinstance(one, dict) else getattr(one, "__dict__", None)
    if not isinstance(held, dict) or isinstance(one, type):
        return []
    return list(itertools.islice(held.values(), MAX_PARTS))


def _name_open_file(one: Any) -> str | None:
    """Name an open file; None for anything else."""
    try:
        if type(one).__module__.partition(".")[0] == "h5py":
            return f"h5py {type(one).__name__} {getattr(one, 'filename', '')}".strip() if one else None
        if isinstance(one, io.IOBase) and one.readable() and stat.S_ISREG(os.fstat(one.fileno()).st_mode):
            return str(getattr(one, "name", type(one).__name__))
    except Exception:  # closed, in memory only, or something that merely looks like a file
        return None
    return None
