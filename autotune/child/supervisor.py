"""The supervisor, the only child of the tuner: it forks a process for each trial, and ends all that a trial starts.

`python -P -m autotune.child.supervisor FD TUNER`: FD is an inherited SEQPACKET socket, TUNER the tuner's process ID.
One JSON object per packet:

    {"start": working folder} with the trial's connection
                                          -> {"pid": N, "folder": ...} with a pidfd, or {"errno": N, "path": ...}
    {"import": [names of modules], "environment": {variables to set before}}
                                          -> {"imported": whether trials can be forked}
    {"status": N}                         -> {"status": exit code or null}
    {"end": [processes that were seen to belong to the trial]}
                                          -> {"survivors": [...]}

The folder is the trial's private temporary folder, with its output in `.dltune-log`. The supervisor makes it, so that
it can always remove it.

The supervisor has one thread, never runs the user's code, and is a child subreaper: every process of a trial stays its
descendant, also if it leaves the session or loses its parent. It imports torch once, and later the installed libraries
that the workload imports, so that a trial starts in 0.2 s instead of 2 or 15. A trial is a new interpreter if
the import leaves a thread behind. When the tuner ends, however that happens, the socket closes and the supervisor ends
the trial.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from autotune.child.errors import dump_stacks_on_signal
from autotune.system import procfs
from autotune.system.worker_errors import report_unsent_data

MAX_TMPDIR_BYTES: Final = 48  # paths of sockets end at 107: 25 more for a trial, and 34 for torch_shm_manager
MAX_REQUEST_BYTES: Final = 2**18  # more than the kernel sends at once by default
CLEANER_GRACE_SECONDS: Final = 4.0  # torch_shm_manager waits two seconds before it removes names
MAX_EXIT_SECONDS: Final = 60.0  # for a killed process to give its memory and its device back
KILL_INTERVAL_SECONDS: Final = 0.01
REAP_INTERVAL_SECONDS: Final = 0.5  # until a tuner that ended is noticed, too, if another process inherited its socket
IGNORED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


class Supervisor:
    """Handles the tuner's requests; at most one trial runs at a time."""

    def __init__(self, connection: socket.socket, *, can_fork: bool) -> None:
        self._connection, self._can_fork = connection, can_fork
        self._folder: Path | None = None
        self._statuses: dict[int, int] = {}
        self._survivors: set[int] = set()  # of earlier trials, which cannot be killed

    def serve(self, tuner: int) -> None:
        """Handle the requests of the tuner until it ends; then end the trial."""
        self._connection.settimeout(REAP_INTERVAL_SECONDS)
        while self._handle(tuner):
            self._reap()
        self._end_trial()

    def _handle(self, tuner: int) -> bool:
        """Handle one request, if one arrives in time; return False if the tuner ended and left no request."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._connection, MAX_REQUEST_BYTES, 1)
            request = json.loads(message)
            if "start" in request:
                self._start(request["start"], *descriptors)
            elif "import" in request:
                self._send({"imported": self._import(request["import"], request["environment"])})
            elif "status" in request:
                self._reap()
                self._send({"status": self._statuses.get(request["status"])})
            else:
                self._send({"survivors": self._end_trial(request["end"])})
        except TimeoutError:
            return os.getppid() == tuner
        except (OSError, ValueError):  # an empty packet
            return False
        return True

    def _send(self, reply: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._connection, [json.dumps(reply).encode()], descriptors)

    def _start(self, working_dir: str, connection: int) -> None:
        self._statuses.clear()
        supervisor = os.getpid()
        try:
            self._folder = _make_folder()
            with (self._folder / procfs.LOG_FILE).open("ab") as log:
                pid = _fork()
                if not pid:
                    try:
                        self._connection.close()
                        _prepare_child(working_dir, self._folder, log.fileno(), supervisor)
                        _serve_as_child(connection, can_fork=self._can_fork)
                    except BaseException:  # this process must never go on as the supervisor
                        os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
                    finally:
                        os._exit(1)
            pidfd = os.pidfd_open(pid)  # before the process can be reaped
        except OSError as error:
            self._remove_folder()
            self._send({"errno": error.errno, "path": error.filename})
        else:
            self._send({"pid": pid, "folder": str(self._folder)}, (pidfd,))
            os.close(pidfd)
        os.close(connection)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            procfs.remove_folder(self._folder)
            self._folder = None

    def _import(self, modules: Sequence[str], environment: dict[str, str]) -> bool:
        """Import libraries; return False if that failed, or has disturbed this process."""
        if not self._can_fork:
            return True
        from autotune.child.custom_loaders import record_call, replace_new

        os.environ |= environment
        try:
            with replace_new(record_call):  # an installed module of the user's may make a loader
                for name in modules:
                    importlib.import_module(name)
        except Exception:  # it depends on the folder, or on what the user's code did before
            return False
        gc.freeze()
        are_ignored = all(signal.getsignal(number) is signal.SIG_IGN for number in IGNORED_SIGNALS)
        return are_ignored and not self._list_descendants() and _is_forkable()

    def _reap(self) -> None:
        """Collect the exit code of each child that ended, orphans included."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])

    def _end_trial(self, seen: Sequence[int] = ()) -> list[int]:
        """Kill all descendants, remove their files and segments, and return those that cannot be killed.

        The kernel lets a process be reaped after its memory is free and its files and devices are closed.
        torch_shm_manager and multiprocessing's resource tracker are killed last: they remove names in /dev/shm.
        """
        descendants = self._list_descendants()
        others = [pid for pid in descendants if not procfs.is_cleaner(pid)]
        procfs.signal_all(others, signal.SIGSTOP)  # so that segments are final
        segments = {name for pid in descendants for name in procfs.list_used_segments(pid)}
        segments |= procfs.list_used_semaphores(others)
        deadline = time.monotonic() + CLEANER_GRACE_SECONDS
        while descendants and time.monotonic() < deadline + (
            MAX_EXIT_SECONDS if any(map(procfs.is_exiting, descendants)) else CLEANER_GRACE_SECONDS
        ):
            cleaners = [pid for pid in descendants if procfs.is_cleaner(pid)] if time.monotonic() < deadline else []
            procfs.signal_all(cleaners, signal.SIGCONT)
            procfs.signal_all(set(descendants).difference(cleaners), signal.SIGKILL)
            time.sleep(KILL_INTERVAL_SECONDS)
            self._reap()
            descendants = self._list_descendants()
        self._survivors.update(descendants)
        procfs.remove_segments(segments | procfs.list_empty_segments(seen))
        self._remove_folder()
        return descendants

    def _list_descendants(self) -> list[int]:
        tree = procfs.list_tree(os.getpid())[1:]
        self._survivors.intersection_update(tree)
        return [pid for pid in tree if pid not in self._survivors]


def _make_folder() -> Path:
    """Make a private temporary folder whose path is short enough for the sockets that torch places there."""
    usual, prefix = tempfile.gettempdir(), f"dltune-{os.getppid()}-"
    if len(os.fsencode(usual)) > MAX_TMPDIR_BYTES:
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    return Path(tempfile.mkdtemp(prefix=prefix, dir=usual))


def _fork() -> int:
    with warnings.catch_warnings():  # Python counts threads before those that know of forks have ended
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _prepare_child(working_dir: str, folder: Path, log: int, supervisor: int) -> None:
    """Give the process of a trial its session, folders, output and default signals."""
    os.setsid()
    procfs.die_with_parent()  # the supervisor has one thread, so that its end is that of its thread
    if os.getppid() != supervisor:
        os._exit(3)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel must never choose the user's other processes
    os.environ["TMPDIR"] = os.environ[procfs.TRIAL_VARIABLE] = str(folder)
    try:
        os.chdir(working_dir)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)


def _serve_as_child(connection: int, *, can_fork: bool) -> NoReturn:
    """Serve the tuner as the process of a trial: a new interpreter, or this fork with random numbers of its own."""
    if not can_fork:
        os.set_inheritable(connection, True)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "autotune.child.supervisor", str(connection)])  # noqa: S606  # nothing is quoted
    tempfile.tempdir = None
    from autotune.child.distributed import reseed_rngs

    reseed_rngs()
    serve_trial(connection, is_fork=True)


def _forget_exit_handlers() -> None:
    """Leave the exit handlers of imported libraries to the supervisor: what they remove is of all trials.

    That of multiprocessing would end workers; the supervisor does, and removes their segments.
    """
    atexit._clear()
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # private
        one.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # the next one registers them again


def serve_trial(connection: int, *, is_fork: bool) -> NoReturn:
    """Serve the tuner behind a descriptor until it closes the connection."""
    os.set_inheritable(connection, False)
    _forget_exit_handlers()
    dump_stacks_on_signal()
    report_unsent_data()
    from autotune.child.server import serve_tuner
    from autotune.protocol.messages import Channel

    if not is_fork:  # the supervisor has frozen its objects
        gc.freeze()  # else each worker's garbage collector touches, and copies, what a training process does not have
    serve_tuner(Channel(socket.socket(fileno=connection)))
    with contextlib.suppress(BaseException):  # of the user's code, which may remove its temporary files
        atexit._run_exitfuncs()
    os._exit(0)  # threads of the user's code must not keep a finished process alive


def _import_torch() -> bool:
    """Import torch and what each trial needs, and return whether trials can be forked afterwards.

    Garbage collection of dltune's own objects is frozen first: a trial must not collect more than a training process.
    """
    import autotune.child.server

    gc.freeze()
    try:
        import autotune.child.probe
        import autotune.child.trial  # noqa: F401
    except Exception:  # the installation is broken, the trial's own process reports it
        return False
    return _is_forkable()


def _is_forkable() -> bool:
    """Return whether this process has one thread, after a first fork ends those that know of forks, and no device."""
    import torch

    pid = _fork()
    if not pid:
        os._exit(bool(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0 and procfs.count_threads() == 1


def main() -> None:
    """Serve the tuner that the command line names, as its supervisor or as the process of a trial."""
    descriptor, *tuner = sys.argv[1:]
    sys.argv[:] = ["dltune"]  # argparse of a module prints it
    if not tuner:
        serve_trial(int(descriptor), is_fork=False)
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a dataset may signal its parent
    procfs.become_subreaper()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    can_fork = _import_torch()
    Supervisor(socket.socket(fileno=int(descriptor)), can_fork=can_fork).serve(int(tuner[0]))
    os._exit(0)


if __name__ == "__main__":
    main()
