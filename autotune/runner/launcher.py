"""Starts the processes of trials through the supervisor, and ends them.

A trial's process is never a `multiprocessing.Process`: inside a spawned child, multiprocessing's default start method
becomes the parent's, so the DataLoader's own workers would silently be spawned instead of forked and take twenty times
longer to start.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

from autotune.system.processes import PROC, TRIAL_VARIABLE, list_tree

MAX_TMPDIR_LENGTH: Final = 60  # characters; AF_UNIX paths end at 108, and torch adds to it
MAX_ANSWER_BYTES: Final = 2**16
MAX_START_SECONDS: Final = 120.0  # for the first answer: a slow disk may take that long to import torch
MAX_ANSWER_SECONDS: Final = 20.0
FORBIDDEN_CHARACTERS: Final = r'[\\/:*?"<>|]'
KILLED: Final = -signal.SIGKILL  # exit code


class SupervisorError(OSError):
    """The supervisor does not answer, or is gone."""


class ProcessHandle:
    """The main process of a trial.

    Attributes:
        pid: Its process ID.
        returncode: As in `subprocess.Popen`; None until the process was seen to have ended.
    """

    def __init__(self, launcher: Launcher, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._launcher = launcher
        self._pidfd = pidfd

    def poll(self, seconds: float = 0.0) -> int | None:
        """Return the exit code if the process ends within so many seconds."""
        if self.returncode is None and self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(seconds * 1000):
                self.returncode = self._launcher.read_status(self.pid)
        return self.returncode

    def close(self) -> None:
        """Release the descriptor of the process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Launcher:
    """Starts trials; as a context manager it begins to import torch at once.

    Args:
        processes: Training processes per trial; libraries use one thread each if there are several, as under torchrun.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._is_ready = False
        self._trial: int | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # the first trial reports it
            self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def supervisor_pid(self) -> int:
        """Process ID of the supervisor; 0 before it was started."""
        return 0 if self._supervisor is None else self._supervisor.pid

    def prepare(self) -> None:
        """Start the supervisor, unless it runs; raise OSError if the machine does not allow it."""
        if self._supervisor is not None and self._supervisor.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(ours.close)
            command = ("-P", "-m", "autotune.child.supervisor", str(theirs.fileno()), str(os.getpid()))
            self._supervisor = subprocess.Popen(
                [sys.executable, *command],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._make_environment(),
                start_new_session=True,
            )
            on_error.pop_all()
        self._connection, self._is_ready = ours, False

    def _make_environment(self) -> dict[str, str]:
        """Return the environment of trials; compile caches stay where training finds them."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may run as a user without a name
            user = f"uid_{os.getuid()}"
        folder = f"torchinductor_{re.sub(FORBIDDEN_CHARACTERS, '_', user)}"  # as torch names it
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), folder))}
        threads = {"OMP_NUM_THREADS": "1"} if self._processes > 1 else {}
        return {**caches, **threads, **os.environ, TRIAL_VARIABLE: "1"}

    def start(
        self, connection: int, log: BinaryIO, folder: Path, working_dir: str, *, interpreter: bool = False
    ) -> ProcessHandle:
        """Start the process of a trial.

        Args:
            connection: Descriptor of its socket.
            log: File for its stdout and stderr.
            folder: Its private temporary folder, which the supervisor removes.
            working_dir: Where it runs.
            interpreter: Whether to start a new interpreter instead of a fork.

        Raises:
            OSError: The machine does not allow to start a process.
        """
        trial = {"folder": str(folder), "working_dir": str(Path(working_dir).resolve()), "interpreter": interpreter}
        descriptors = (connection, log.fileno())
        try:
            self.prepare()
            answer, received = self._ask({"start": trial}, descriptors)
        except SupervisorError:  # a trial has killed it
            self.close()
            self.prepare()
            answer, received = self._ask({"start": trial}, descriptors)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        self._trial = answer["pid"]
        return ProcessHandle(self, answer["pid"], received[0])

    def read_status(self, pid: int) -> int | None:
        """Return the exit code of a trial's process that ended; that of a killed one if nobody knows."""
        try:
            status: int | None = self._ask({"status": pid})[0]["status"]
        except SupervisorError:
            return KILLED
        return status

    def end_trial(self, seen: Iterable[int] = ()) -> list[int]:
        """End the running trial with everything that it started, and return the processes that cannot be killed.

        Args:
            seen: Processes that were seen to belong to it, of which some may have ended.
        """
        if self._connection is None:
            return []
        try:
            survivors: list[int] = self._ask({"end": list(seen)})[0]["survivors"]
        except SupervisorError:
            self.close()
            return []
        self._trial = None
        return survivors

    def _ask(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> tuple[dict[str, Any], list[int]]:
        if self._connection is None:
            raise SupervisorError(errno.EPIPE, "the supervisor is gone")
        try:
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            if not poll.poll(1000 * (MAX_ANSWER_SECONDS if self._is_ready else MAX_START_SECONDS)):
                raise SupervisorError(errno.ETIMEDOUT, "the supervisor does not answer")
            message, received, _, _ = socket.recv_fds(self._connection, MAX_ANSWER_BYTES, 1)
            self._is_ready = True
            return dict(json.loads(message)), list(received)
        except ValueError:  # an empty packet
            raise SupervisorError(errno.EPIPE, "the supervisor is gone") from None
        except OSError as error:
            raise SupervisorError(error.errno, error.strerror) from None

    def close(self) -> None:
        """End the supervisor, and with it the running trial."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._supervisor is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(MAX_ANSWER_SECONDS)
        was_killed = self._supervisor.poll() != 0
        self._supervisor.kill()
        self._supervisor.wait()
        self._supervisor = None
        if was_killed and self._trial is not None:
            kill_session(self._trial)
        self._trial = None


def kill_session(session: int) -> None:
    """Kill the processes of a trial whose supervisor was killed; those that left its session are lost."""
    for pid in (int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()):
        with contextlib.suppress(OSError):
            for one in list_tree(pid) if os.getsid(pid) == session else ():
                with contextlib.suppress(OSError):
                    os.kill(one, signal.SIGKILL)


def make_folder() -> Path:
    """Make a private temporary folder whose path is short enough for the sockets that torch places there."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= MAX_TMPDIR_LENGTH else "/tmp"
    return Path(tempfile.mkdtemp(prefix=f"dltune-{os.getpid()}-", dir=parent))
