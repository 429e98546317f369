"""What does reading leave behind in a process that workers forked from it would inherit, and training's would not?

Training forks its workers from a process that has read nothing. A thread that reads ahead does not survive the fork,
nor do those of libraries: some wait for them for ever, others compute without, as in no worker of training. And a file
that each worker was to open by itself would be open already, and shared.
"""

from __future__ import annotations

import gc
import stat
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple, Self

from autotune.system.kernel_files import PROC
from autotune.system.processes import count_threads
from autotune.trial.protocol import Traces

FORK_SHY: Final = ("polars", "tokenizers")  # that wait for threads which a fork has lost; OpenCV goes on without them
THREADS_LEFT: Final = (
    "Reading this dataset without workers leaves threads behind, and workers that are forked afterwards may hang: "
    "have its workers started before anything else reads from it"
)


class ProcessState(NamedTuple):
    """What a process has that a fork takes along badly."""

    threads: frozenset[threading.Thread]
    all_threads: int  # those that Python knows nothing of included
    files: frozenset[str]  # that are open

    @classmethod
    def read(cls) -> Self:
        """Read that of this process."""
        return cls(frozenset(threading.enumerate()), count_threads(), frozenset(_list_open_files()))


def find_traces(before: ProcessState) -> Traces:
    """Compare this process with what it was; meanwhile nothing but loading may have started threads."""
    now = ProcessState.read()
    if not before.files.issuperset(now.files):
        gc.collect()  # what holds a file may be of no use any more
        now = ProcessState.read()
    has_pools = now.all_threads > before.all_threads
    has_shy = has_pools and any(name in sys.modules for name in FORK_SHY)
    has_threads = has_shy or not before.threads.issuperset(now.threads)
    return Traces(threads=has_threads, pools=has_pools, files=not before.files.issuperset(now.files))


def describe_traces(traces: Traces) -> str | None:
    """Say what training should mind; files that each worker opens by itself are as they should be."""
    return THREADS_LEFT if traces.threads else None


def _list_open_files() -> list[str]:
    """List the regular files that this process has open, as they are called; none where the system does not tell."""
    try:
        descriptors = list((PROC / "self" / "fd").iterdir())
    except OSError:
        return []
    return [name for descriptor in descriptors if (name := _name_file(descriptor)) is not None]


def _name_file(descriptor: Path) -> str | None:
    try:
        return str(descriptor.readlink()) if stat.S_ISREG(descriptor.stat().st_mode) else None
    except OSError:  # closed meanwhile
        return None
