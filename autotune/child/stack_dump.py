"""Has this process, and all that it forks, write down where it stands when the tuner asks."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.protocol.process_spec import STACK_SIGNAL, STACKS_FILE


def answer_stack_requests() -> None:
    """Append the stacks of all threads to our own file at each signal; to be called before user code runs.

    The handler is C code, which answers from within a lock or a loop as well.
    """
    folder = os.environ.get("TMPDIR")
    if STACK_SIGNAL is None or folder is None:
        return
    try:
        descriptor = os.open(Path(folder) / STACKS_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:  # then nobody is asked
        return
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)


@dataclass(frozen=True)
class AnsweringWorker:
    """A `worker_init_fn` for workers that are not forked, and so have no handler; then it calls another, if any."""

    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Set up one worker."""
        answer_stack_requests()
        if self.then is not None:
            self.then(worker_id)
