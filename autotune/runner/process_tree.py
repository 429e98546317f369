"""Finds every process of a trial and ends it, without touching any other.

Killing a process group is not enough: `torch_shm_manager` and whatever a dataset starts may leave the
session, and orphans change their parent. So each trial's processes carry its id in their environment, which
every descendant inherits; whoever carries it belongs to the trial. A process that clears its environment, or writes a
title over it, is left to the trial's keeper. `torch_shm_manager` and multiprocessing's resource tracker are spared for
a moment: they are the ones who remove the names of dead processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Final

from autotune.system.processes import PROC, is_cleaner, read_text

TRIAL_ID_VARIABLE: Final = "DLTUNE_TRIAL"
CLEANER_GRACE_SECONDS: Final = 4.0  # torch_shm_manager waits two seconds before it removes names


def list_trial_processes(trial_id: str) -> list[int]:
    """List the processes that carry a trial's id in their environment, without zombies and without our own."""
    others = (int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit())
    return [pid for pid in others if pid != os.getpid() and _carries_id(pid, trial_id)]


def _carries_id(pid: int, trial_id: str) -> bool:
    with contextlib.suppress(OSError):
        return f"{TRIAL_ID_VARIABLE}={trial_id}".encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def kill_trial(trial_id: str, keeper: int | None = None, server: int | None = None) -> list[int]:
    """End every process that carries a trial's id, the cleaners last, and list those that do not end.

    The `keeper` ends by itself when it has ended those of the trial that hide it; the `server`, which forked them and
    carries their id as well, goes on.
    """
    deadline = time.monotonic() + CLEANER_GRACE_SECONDS
    while living := [pid for pid in list_trial_processes(trial_id) if pid != server]:
        overdue = time.monotonic() > deadline
        victims = [pid for pid in living if overdue or not (pid == keeper or is_cleaner(pid))]
        for pid in living:  # those who are spared must not be stopped
            _signal(pid, trial_id, signal.SIGKILL if pid in victims else signal.SIGCONT)
        if time.monotonic() > deadline + CLEANER_GRACE_SECONDS:
            return living
        time.sleep(0.01 if victims else 0.05)
    return []


def _signal(pid: int, trial_id: str, number: signal.Signals) -> None:
    """Signal one process, if it carries the trial's id, so that a reused number is not hit."""
    descriptor = _hold_number(pid)
    try:
        if _carries_id(pid, trial_id):
            _send(pid, descriptor, number)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _hold_number(pid: int) -> int | None:
    """Give a descriptor of a process, whose number may be reused; None where Python or the kernel has none.

    Some Pythons were built without the call, and some sandboxes refuse it. Then there is a moment between looking at
    its environment and sending the signal; numbers are not reused that soon.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _send(pid: int, descriptor: int | None, number: signal.Signals) -> None:
    try:
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
            return
    except ProcessLookupError:  # it has ended, and the number may be another's by now
        return
    except OSError:  # a sandbox may allow the one call and refuse the other
        pass
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def describe_survivors(pids: Sequence[int]) -> str:
    """Say which processes of a trial could not be ended, and what to do about them."""
    names = ", ".join(f"{pid} ({read_text(PROC / str(pid) / 'comm').strip() or 'unknown'})" for pid in pids)
    return (
        f"Processes of a trial are still there {2 * CLEANER_GRACE_SECONDS:.0f} s after they were killed: {names}. "
        "They wait for a disk or a network that does not answer, or run as another user, and may disturb what is "
        f"measured. End them before training: kill -9 {' '.join(map(str, pids))}"
    )
