"""Makes this process, and all that it forks, append its Python stacks to a file when the tuner asks for them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable
from pathlib import Path

from autotune.system.processes import STACK_SIGNAL, STACKS_FILE


def dump_stacks_on_signal() -> None:
    """Append the stacks of all threads to a file at each signal; call this before user code runs.

    The handler is C code, which works within a lock or a loop as well.
    """
    with contextlib.suppress(KeyError, OSError):  # in a test there is no such folder
        path = Path(os.environ["TMPDIR"], STACKS_FILE)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACK_SIGNAL, file=descriptor)


def set_up_worker(worker_init: Callable[[int], None] | None, worker_id: int) -> None:
    """Dump the stacks of a worker that is not forked, and so has no handler; then call its `worker_init_fn`, if any."""
    dump_stacks_on_signal()
    if worker_init is not None:
        worker_init(worker_id)
