"""Forks the processes of trials from one that has imported torch and nothing of the user's.

Importing torch takes a fresh process a second and a half; a fork of one that has done so takes a tenth of it. What is
forked begins as an interpreter does that has just imported: no thread is alive, no device was touched, and the memory
is made its own, so that neither later copies nor its accounts differ from those of a process that was started.

Messages in, a packet each: `{"trial": {...}}` with two descriptors, the line to the tuner and the log; `{"wait": pid}`.
Messages out: `{}` once, when it is ready; `{"pid": pid}`; `{"status": status}`, as `os.wait` gives it. It exits with 5
where forking from it would not be safe.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn

from autotune.child.namespaces import die_with_parent
from autotune.child.own_memory import own_memory
from autotune.child.own_randomness import draw_anew
from autotune.system.processes import count_threads
from autotune.trial.sandbox_spec import SandboxSpec

MAX_ORDER_BYTES: Final = 2**20
UNSAFE: Final = 5  # exit code

RunTrial = Callable[[int, int, SandboxSpec, Callable[[], None]], NoReturn]


def serve_forks(connection: socket.socket, tuner: int, run_trial: RunTrial) -> NoReturn:
    """Fork a process for each order until the tuner closes the line.

    Each goes on in `run_trial`, which is given the descriptor of its line, its parent, its sandbox, and what to call in
    the process that is left in the sandbox.
    """
    die_with_parent()
    if os.getppid() != tuner:
        os._exit(3)
    _import_what_trials_need()
    if not _is_safe():
        os._exit(UNSAFE)
    connection.send(b"{}")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, 2)
        if not message:
            os._exit(0)
        order = json.loads(message)
        if "wait" in order:
            connection.send(json.dumps({"status": os.waitpid(order["wait"], 0)[1]}).encode())
            continue
        server = os.getpid()
        pid = _fork()
        if not pid:
            connection.close()
            _become_trial(order["trial"], *descriptors)
            run_trial(descriptors[0], server, SandboxSpec(**order["trial"]["sandbox"]), own_memory)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": pid}).encode())


def _import_what_trials_need() -> None:
    """Import what every trial does, dltune's own part first: that is frozen out of garbage collection."""
    import autotune.child.ranks

    gc.freeze()  # as in a process that is started
    import autotune.child.measurement
    import autotune.child.probe
    import autotune.child.training_step
    import autotune.child.workload_loading  # noqa: F401


def _fork() -> int:
    with warnings.catch_warnings():  # Python counts threads before those that know of forks have ended
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _is_safe() -> bool:
    """Fork once for nothing, and tell whether it could have gone on.

    Threads that know of forks, such as OpenBLAS's, have let themselves be ended by it; others are left. And CUDA cannot
    be used in a process whose parent has touched it.
    """
    import torch

    pid = _fork()
    if not pid:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0 and count_threads() == 1


def _become_trial(trial: dict[str, Any], line: int, log: int) -> None:
    """Be what a process that is started would be: its session, folder, environment, output and chances."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.set_inheritable(line, False)
    os.chdir(trial["working_dir"])
    os.environ.update(trial["environment"])
    tempfile.tempdir = None
    draw_anew()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
