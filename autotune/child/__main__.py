"""The process of a trial, in which the user's code runs: `python -P -m autotune.child FD TUNER SANDBOX`.

Arguments: FD, an inherited stream socket; TUNER, the process whose end ends this one; SANDBOX, what
`autotune.child.namespaces` puts around it, as JSON; or `fork`, for one that forks such processes when it is asked to.
Messages in (`autotune.protocol.messages.Command`): `load` once, then `probe`, `run` and `release` in any number.
Messages out (`Report`): `ready` after `load` and after `release`; `probed`; `measured`; `failed` instead of
any of them when the user's code or torch raised; `progress` at any time, about four a second while measuring.
Exit codes: 0 when the line is closed by the tuner; 3 when the tuner was gone at the start; 4 when the sandbox could
not be set up, for the reason on stderr.
stdout and stderr belong to the user's code and are never read as messages.

The top of this file imports the standard library only: it stays in the memory of the keeper and of the sandbox's init.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from autotune.child.keeper import continue_under_keeper
from autotune.child.namespaces import die_with_parent, enter_sandbox
from autotune.child.stack_dump import answer_stack_requests
from autotune.protocol.process_spec import SANDBOX_ERROR_PREFIX, SandboxSpec


def guard_process() -> None:
    """Make sure that this process, and all that it forks, harm nobody."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel must never pick the user's other work
    except OSError:
        pass
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _continue_in_sandbox(tuner: int, sandbox: SandboxSpec, descriptor: int) -> None:
    """Go on in a process that is ended, with all that it starts, when the tuner ends or says so."""
    if sys.platform != "linux":
        return
    die_with_parent()
    if os.getppid() != tuner:
        os._exit(3)
    try:
        enter_sandbox(sandbox, descriptor)
    except OSError as error:
        sys.stderr.write(f"{SANDBOX_ERROR_PREFIX}{error}\n")
        sys.exit(4)
    if not sandbox.own_pids:  # else the namespace's init does it
        continue_under_keeper(tuner, descriptor)


def main() -> None:
    """Serve the tuner named on the command line."""
    descriptor, tuner, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # also for those who wait: they end by the same signal
    sys.argv[:] = sys.argv[:1]
    if what == "fork":
        from autotune.child.fork_server import serve_forks

        serve_forks(socket.socket(fileno=descriptor), tuner, run_trial)
    run_trial(descriptor, tuner, SandboxSpec.from_json(what))


def run_trial(descriptor: int, parent: int, sandbox: SandboxSpec, begin: Callable[[], None] = lambda: None) -> NoReturn:
    """Serve the tuner behind a descriptor until it closes the line or the parent ends.

    `begin` is called in each process that trains, before anything of the user's runs there.
    """
    _continue_in_sandbox(parent, sandbox, descriptor)
    guard_process()
    answer_stack_requests()
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    from autotune.child.server import serve_tuner  # before the freeze, with pydantic
    from autotune.protocol.messages import Channel

    if not gc.get_freeze_count():  # else it was forked, dltune's own is frozen already, and torch's is not to be
        gc.freeze()  # or each worker's garbage collector would touch, and copy, what a training process does not have
    serve_tuner(Channel(connection), begin)
    os._exit(0)  # threads and exit handlers of the user's code must not keep a finished child alive


if __name__ == "__main__":
    main()
