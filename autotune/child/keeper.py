"""Stands in for the init of a process namespace, where a trial has none: it keeps the trial's processes below it.

The first process of a trial stays behind as its keeper and never runs code of the user's. Processes whose parents end
become its children, so whatever leaves the session, clears its environment or takes another name can still be found;
and when the trial's main process or the tuner ends, however that happens, it ends all of them.

A signal at the parent's end, asked for by each process (PR_SET_PDEATHSIG), would not do: it comes at the end of the
thread that forked, so it kills what a short-lived thread of the dataset has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from autotune.child.namespaces import adopt_orphans, die_with_parent, exit_like, signal_at_parents_end
from autotune.system.processes import is_cleaner, list_tree

PARENT_ENDED: Final = signal.SIGUSR1  # or one of its threads only
END_REQUESTED: Final = signal.SIGTERM
KILL_INTERVAL_SECONDS: Final = 0.01


def continue_under_keeper(tuner: int, descriptor: int) -> None:
    """Return in a new process, which alone keeps the line to the tuner open; this one becomes its keeper."""
    keeper = os.getpid()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a tuner that ignores it has handed that down
    adopt_orphans()
    signal_at_parents_end(PARENT_ENDED)
    main = os.fork()
    if main:
        os.close(descriptor)
        status = _await_end(main, tuner)
        _end_descendants()
        exit_like(status)
    die_with_parent()  # the keeper has one thread
    if os.getppid() != keeper:
        os._exit(3)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _await_end(main: int, tuner: int) -> int:
    """Reap children until the main process is one of them, the tuner is gone, or says so; give how to end."""
    while os.getppid() == tuner:
        if signal.sigwait({signal.SIGCHLD, PARENT_ENDED, END_REQUESTED}) == END_REQUESTED:
            return END_REQUESTED
        status = _reap().get(main)
        if status is not None:
            return status
    return signal.SIGKILL


def _reap() -> dict[int, int]:
    """Give the status of each child that has ended."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[found[0]] = found[1]
    return statuses


def _end_descendants() -> None:
    """Kill what is left, without those who remove the names of the dead and end by themselves then."""
    while victims := [pid for pid in list_tree(os.getpid())[1:] if not is_cleaner(pid)]:
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_INTERVAL_SECONDS)
        _reap()
