"""Starts the processes of trials by forking one that has imported torch, where that is possible and safe.

What it starts is as isolated as a process of its own: it puts its sandbox up itself, after the fork. Where anything
is in the way, a new interpreter is started instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import asdict
from typing import Any, Final

from autotune.protocol.process_spec import SandboxSpec
from autotune.runner.process_tree import TRIAL_ID_VARIABLE

MAX_READY_SECONDS: Final = 30.0  # from its start: a disk may be slow to give torch; then new interpreters are started
MAX_ANSWER_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 4096


class ForkServerError(Exception):
    """It cannot fork, or is gone."""


class ForkServer:
    """A process that forks those of trials; it ends with its tuner.

    Attributes:
        trial_id: What all that it forks carry in their environment, as it does itself.
        pid: Its number.
    """

    def __init__(self, working_dir: str) -> None:
        self.trial_id = uuid.uuid4().hex
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ready_before = time.monotonic() + MAX_READY_SECONDS
        self._is_ready = False
        with contextlib.ExitStack() as cleanup, theirs:
            cleanup.callback(self._connection.close)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "autotune.child", str(theirs.fileno()), str(os.getpid()), "fork"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=working_dir,
                env={**os.environ, TRIAL_ID_VARIABLE: self.trial_id},
                start_new_session=True,
            )
            cleanup.pop_all()
        self.pid = self._process.pid

    def fork(self, spec: SandboxSpec, working_dir: str, environment: dict[str, str], line: int, log: int) -> Forked:
        """Fork a process of a trial, which gets two descriptors; raises ForkServerError where that fails."""
        if not self._is_ready:
            self._receive(self._ready_before - time.monotonic())
            self._is_ready = True
        trial = {"sandbox": asdict(spec), "working_dir": working_dir, "environment": environment}
        answer = self._ask({"trial": trial}, [line, log])
        try:
            return Forked(self, answer["pid"])
        except (AttributeError, OSError) as error:
            with contextlib.suppress(OSError):
                os.kill(answer["pid"], signal.SIGKILL)
            raise ForkServerError(str(error)) from None

    def wait_for(self, pid: int) -> int:
        """Give the status of a process that has ended, as `os.wait` does; as killed where nobody can tell."""
        try:
            return int(self._ask({"wait": pid})["status"])
        except ForkServerError:
            self._connection.close()  # a late answer would be taken for that to the next question
            return int(signal.SIGKILL)

    def _ask(self, order: dict[str, Any], descriptors: list[int] | None = None) -> dict[str, Any]:
        try:
            socket.send_fds(self._connection, [json.dumps(order).encode()], descriptors or [])
        except OSError as error:
            raise ForkServerError(str(error)) from None
        return self._receive(MAX_ANSWER_SECONDS)

    def _receive(self, seconds: float) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        try:
            message = self._connection.recv(MAX_ANSWER_BYTES) if poll.poll(max(0.0, seconds) * 1000) else b""
            return dict(json.loads(message))
        except (OSError, ValueError) as error:
            raise ForkServerError(str(error)) from None

    def close(self) -> None:
        """End it, and with it all that it has forked."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A process that the server has forked, with what `subprocess.Popen` tells of one.

    Attributes:
        pid: Its number, which is kept until it has been waited for.
        returncode: As that of a Popen; None until it was found ended.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Tell how it ended, if it has."""
        return self._look(0.0)

    def wait(self, timeout: float) -> int:
        """Wait until it ends; raises subprocess.TimeoutExpired."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return status

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def _look(self, seconds: float) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(seconds * 1000):
                self.returncode = os.waitstatus_to_exitcode(self._server.wait_for(self.pid))
                os.close(self._descriptor)
        return self.returncode
