"""A process that forks the children of test after test: importing torch takes longer than most of what they do."""

from __future__ import annotations

import atexit
import os
from typing import Final

from autotune.protocol.process_spec import SandboxSpec
from autotune.runner.fork_server import Forked, ForkServer
from autotune.runner.launcher import Starter


class KeptServer(ForkServer):
    """Tells what it forks the variables that tests have set since it was started itself."""

    def __init__(self, working_dir: str) -> None:
        self._environment = dict(os.environ)
        super().__init__(working_dir)

    def fork(self, spec: SandboxSpec, working_dir: str, environment: dict[str, str], line: int, log: int) -> Forked:
        """As the server of a tuner."""
        set_since = dict(os.environ.items() - self._environment.items())
        return super().fork(spec, working_dir, set_since | environment, line, log)

    def is_gone(self) -> bool:
        """Tell whether a test has ended it."""
        return self._process.poll() is not None


_KEPT: Final[list[KeptServer]] = []


def find_server(working_dir: str) -> KeptServer:
    """Give the server of this session, or one in its place where a test has ended it."""
    while _KEPT and _KEPT[-1].is_gone():
        _KEPT.pop().close()
    if not _KEPT:
        _KEPT.append(KeptServer(working_dir))
        atexit.register(_KEPT[-1].close)
    return _KEPT[-1]


def list_kept() -> list[int]:
    """List the numbers of processes that no test has to take away."""
    return [server.pid for server in _KEPT]


class KeptStarter(Starter):
    """Starts processes as a tuner's own does, and leaves the server to the next test."""

    def prepare(self) -> None:
        if self._may_fork and self._server is None:
            self._server = find_server(self._working_dir)

    def close(self) -> None:
        self._server = None
