"""Describes errors of the user's code: text and traceback, the sample that failed, and workers that died."""

from __future__ import annotations

import itertools
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

PACKAGE_DIR: Final = str(Path(__file__).parents[1])
FETCH_FILE: Final = "torch/utils/data/_utils/fetch.py"  # where a loader asks a dataset for samples
WORKER_EXIT_GRACE_SECONDS: Final = 1.0  # between the end of a worker's connections and its own


def name_error(error: BaseException) -> str:
    """Return type and text of an error as at the end of its traceback, even if its `__str__` is broken."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def format_error(error: BaseException) -> str:
    """Return the traceback of an error without the frames of dltune."""
    lines = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in lines.stack if not frame.filename.startswith(PACKAGE_DIR)]
    lines.stack = traceback.StackSummary.from_list(frames)
    return "".join(lines.format())


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


def find_requested_index(error: BaseException) -> int | None:
    """Return the index that torch asked a dataset for when it raised in this process; None if it is no plain number."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    asked = itertools.dropwhile(lambda frame: not frame.f_code.co_filename.endswith(FETCH_FILE), frames)
    called = next((frame for frame in asked if frame.f_code.co_name == "__getitem__"), None)
    if called is None or called.f_code.co_argcount < 2:
        return None
    index = called.f_locals.get(called.f_code.co_varnames[1])
    return index if isinstance(index, int) and index >= 0 else None


def shut_down_workers(error: BaseException) -> None:
    """End the workers of the loader that raised, before the garbage collector does and waits 5 s for each."""
    traceback.clear_frames(error.__traceback__)
