"""What does reading leave behind in a process that workers forked from it would inherit, and training's would not?

Training forks its workers from a process that has read nothing. A thread that reads ahead does not survive the fork,
nor do those of libraries: some wait for them for ever, others compute without, as in no worker of training. And a file
that each worker was to open by itself would be open already, and shared.
"""

from __future__ import annotations

import gc
import stat
import threading
from pathlib import Path
from typing import Final, NamedTuple, Self

from torch.utils.data import DataLoader

from autotune.child.loader import build_plain_loader
from autotune.child.probe_workers import ROUND_BATCH_SIZE
from autotune.child.workload import LoadedWorkload
from autotune.protocol.messages import Traces
from autotune.system.processes import PROC, count_threads

MIN_PATIENCE_SECONDS: Final = 2.0  # for a worker's first batch, after which it hangs
PATIENCE_BATCHES: Final = 10.0  # of those seconds that loading one takes in this process
HANGS: Final = (
    "Reading this dataset without workers leaves threads behind, and a worker that was forked afterwards hung: have "
    "its workers started before anything else reads from it"
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
    has_threads = now.all_threads > before.all_threads or not before.threads.issuperset(now.threads)
    return Traces(threads=has_threads, files=not before.files.issuperset(now.files))


def hangs_after_reading(workload: LoadedWorkload, batch_seconds: float) -> bool:
    """Fork a worker from this process, which has read, and tell whether it never delivers; then it is spoilt."""
    loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers=1)
    if not isinstance(loader, DataLoader):  # whose workers are its own
        return False
    loader.timeout = max(MIN_PATIENCE_SECONDS, PATIENCE_BATCHES * batch_seconds)
    try:
        next(iter(loader), None)
    except RuntimeError as error:
        return "timed out" in str(error)
    except Exception:  # whatever it is, the trials with workers will meet it and name it
        return False
    return False


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
