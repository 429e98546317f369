"""Starts the process of a trial: forked from one that has imported torch where that works, else a new interpreter.

A new one is a plain subprocess, not a `multiprocessing.Process`: inside a spawned child multiprocessing's
default start method becomes the parent's, so the DataLoader's own workers would silently be spawned instead of
forked and take twenty times longer to start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol, Self

from autotune.protocol.process_spec import SandboxSpec
from autotune.runner.fork_server import ForkServer, ForkServerError
from autotune.runner.process_tree import TRIAL_ID_VARIABLE

CAN_FORK: Final = sys.platform == "linux" and hasattr(os, "pidfd_open")


class Process(Protocol):
    """What a `subprocess.Popen` tells of a process, as far as a trial needs it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """Tell how it ended, if it has."""

    def wait(self, timeout: float) -> int:
        """Wait until it ends; raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """End it at once."""

    def terminate(self) -> None:
        """Ask it to end."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started.

    Attributes:
        process: It.
        trial_id: What it and its descendants carry in their environment.
        server: The process that forked it, which carries the same; None for one of its own.
    """

    process: Process
    trial_id: str
    server: int | None = None


class Starter:
    """Starts processes of trials in one folder, and ends what it keeps for that when it is closed.

    As a context manager it begins to import torch at once, beside whatever its user does first.
    """

    def __init__(self, working_dir: str) -> None:
        self._working_dir = working_dir
        self._may_fork = CAN_FORK
        self._server: ForkServer | None = None

    def __enter__(self) -> Self:
        self.prepare()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Have torch imported in good time, where processes will be forked."""
        if not self._may_fork or self._server is not None:
            return
        try:
            self._server = ForkServer(self._working_dir)
        except OSError:  # who starts an interpreter next will hear why
            self._may_fork = False

    def start(self, spec: SandboxSpec, scratch: str, line: int, log: BinaryIO) -> Started:
        """Start a process with the descriptor of its line, in a sandbox that it puts up itself.

        Raises:
            OSError: The machine refuses to start one.
        """
        self.prepare()
        if self._server is not None:
            environment = {"TMPDIR": scratch}
            try:
                forked = self._server.fork(spec, self._working_dir, environment, line, log.fileno())
                return Started(forked, self._server.trial_id, self._server.pid)
            except ForkServerError:
                self.close()
                self._may_fork = False
        return self._start_interpreter(spec, scratch, line, log)

    def _start_interpreter(self, spec: SandboxSpec, scratch: str, line: int, log: BinaryIO) -> Started:
        trial_id = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.child", str(line), str(os.getpid()), spec.to_json()],
            pass_fds=(line,),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self._working_dir,
            env={**os.environ, TRIAL_ID_VARIABLE: trial_id, "TMPDIR": scratch},
            start_new_session=True,
        )
        return Started(process, trial_id)

    def close(self) -> None:
        """End the process that forks others, if there is one."""
        if self._server is not None:
            self._server.close()
            self._server = None
