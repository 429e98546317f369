"""Makes this process, and all that it forks, append its Python stacks to a file when the tuner asks for them."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.system.processes import STACK_SIGNAL, STACKS_FILE


def dump_stacks_on_signal() -> None:
    """Append the stacks of all threads to a file at each signal; call this before user code runs.

    The handler is C code, which works within a lock or a loop as well.
    """
    folder = os.environ.get("TMPDIR")
    if folder is None:
        return
    try:
        descriptor = os.open(Path(folder) / STACKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)


@dataclass(frozen=True)
class DumpingWorker:
    """A `worker_init_fn` for workers that are not forked, and so have no handler; then it calls another, if any."""

    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Set up one worker."""
        dump_stacks_on_signal()
        if self.then is not None:
            self.then(worker_id)
