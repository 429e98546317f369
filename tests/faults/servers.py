"""Starts a PostgreSQL server of Debian's package for a test, on a socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

START_SECONDS: Final = 30.0
USER: Final = "postgres"  # whom Debian's package makes, and the server runs as
PASSWORD: Final = "hidden"  # which the server does not ask for
DATABASE: Final = "dltune"
PROGRAMS: Final = max((path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")), default=None)
SERVE: Final = (  # segments of System V or in /dev/shm would outlive a server that is killed
    "postgres -D {folder}/data -k {folder} -c listen_addresses= -c fsync=off -c dynamic_shared_memory_type=mmap"
)


def find_lack() -> str | None:
    """Return why the server cannot be started here; None if it can."""
    if PROGRAMS is not None and os.getuid() == 0 and find_spec("psycopg") is not None:
        return None
    return "needs Debian's postgresql, psycopg, and root to start the server"


@dataclass
class Server:
    """A running server."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}:{PASSWORD}@/{DATABASE}?host={self.folder}"

    def kill(self) -> None:
        """Kill it and its children at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _make_command(folder: Path, words: str) -> list[str]:
    """Return a command of the server's, to be run as its user."""
    assert PROGRAMS is not None
    program, *rest = words.format(folder=folder).split()
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return ["env", f"TMPDIR={folder}", *become, str(PROGRAMS / program), *rest]


@contextmanager
def run_server() -> Iterator[Server]:
    """Run a server in a new folder, and remove everything of it afterwards."""
    folder = Path("/tmp") / f"dltune-postgresql-{os.getpid()}"  # a socket's path is short
    folder.mkdir(mode=0o700)
    shutil.chown(folder, USER, USER)
    try:
        initialize = f"initdb -D {{folder}}/data --auth=trust --no-sync --username={USER} --encoding=UTF8 --locale=C"
        subprocess.run(_make_command(folder, initialize), check=True, capture_output=True, cwd=folder)
        command = _make_command(folder, SERVE)
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, cwd=folder)
        server = Server(folder, process)
        _create_database(folder)
        yield server
        if process.poll() is None:
            server.kill()
        _remove_segment(folder / "data" / "postmaster.pid")
    finally:
        shutil.rmtree(folder)


def _create_database(folder: Path) -> None:
    command = _make_command(folder, f"createdb -h {{folder}} {DATABASE}")
    deadline = time.monotonic() + START_SECONDS
    while (tried := subprocess.run(command, check=False, capture_output=True)).returncode:
        assert time.monotonic() < deadline, tried.stderr
        time.sleep(0.1)


def _remove_segment(note: Path) -> None:
    """Remove the server's System V segment, which outlives a server that is killed."""
    if note.exists():
        _, segment = note.read_text().splitlines()[6].split()
        subprocess.run(["ipcrm", "-m", segment], check=False)
