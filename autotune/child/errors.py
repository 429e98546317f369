"""Evidence of failures: text and traceback of an error, workers that died, and the stacks of all threads."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from autotune.system.procfs import STACK_SIGNAL, STACKS_FILE, TRIAL_VARIABLE
from autotune.system.worker_errors import report_unsent_data

PACKAGE_DIR: Final = f"{Path(__file__).parents[1]}{os.sep}"
FETCH_FILE: Final = "torch/utils/data/_utils/fetch.py"  # where a loader asks a dataset for samples
WORKER_EXIT_GRACE_SECONDS: Final = 1.0  # between the end of a worker's connections and its own


def name_error(error: BaseException) -> str:
    """Return type and text of an error as at the end of its traceback, even if its `__str__` is broken."""
    return make_printable("".join(traceback.format_exception_only(type(error), error)).strip())


def format_error(error: BaseException) -> str:
    """Return the traceback of an error without the frames of dltune."""
    lines = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in lines.stack if not frame.filename.startswith(PACKAGE_DIR)]
    lines.stack = traceback.StackSummary.from_list(frames)
    return make_printable("".join(lines.format()))


def make_printable(text: str) -> str:
    """Escape what no encoding has: bytes of a file name that are no UTF-8 are surrogates in Python."""
    return text.encode(errors="backslashreplace").decode()


def annotate_dead_workers(error: Exception, workers: Sequence[BaseProcess]) -> None:
    """Add to an error how workers ended, in torch's own words; the error itself may be a closed connection only."""
    if any("in DataLoader worker" in text for text in error.args if isinstance(text, str)):
        return  # raised by the user's code, in a worker that lives
    is_connection = isinstance(error, OSError | EOFError)
    ended = wait([worker.sentinel for worker in workers], WORKER_EXIT_GRACE_SECONDS if is_connection else 0)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(WORKER_EXIT_GRACE_SECONDS)  # its files are closed; it is about to have an exit status
        code = worker.exitcode
        if code is not None and code < 0:
            error.add_note(f"DataLoader worker (pid {worker.pid}) is killed by signal: {signal.strsignal(-code)}")
        elif code or (code == 0 and is_connection):
            error.add_note(f"DataLoader worker (pid {worker.pid}) exited unexpectedly with exit code {code}")


def shut_down_workers(error: BaseException) -> None:
    """End the workers of the loader that raised, before the garbage collector does and waits 5 s for each."""
    traceback.clear_frames(error.__traceback__)


def dump_stacks_on_signal() -> None:
    """Append the stacks of this process, and of all that it forks, to a file at each signal, also within a lock."""
    with suppress(KeyError, OSError):  # in a test there is no such folder
        path = Path(os.environ[TRIAL_VARIABLE], STACKS_FILE)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACK_SIGNAL, file=descriptor)


def set_up_worker(worker_init: Callable[[int], None] | None, worker_id: int) -> None:
    """Set up a worker that is not forked, and so has no hooks; then call its `worker_init_fn`, if any."""
    dump_stacks_on_signal()
    report_unsent_data()
    if worker_init is not None:
        worker_init(worker_id)
