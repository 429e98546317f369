"""Database servers that a test starts on a socket of its own: Debian's PostgreSQL and MariaDB."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

START_SECONDS: Final = 30.0
PASSWORD: Final = "hidden"  # which neither of them asks for
DATABASE: Final = "dltune"


@dataclass(frozen=True)
class ServerKind:
    """What is different from one server to the other; {folder} stands for the server's own."""

    name: str
    user: str  # whom Debian's package makes, and the server runs as
    driver: str  # module of Python that reaches it
    programs: Path | None  # folder of them; None where it is not installed
    url: str
    initialize: str
    serve: str
    create: str  # makes the database, once the server answers

    def is_available(self) -> bool:
        return self.programs is not None and os.getuid() == 0 and find_spec(self.driver) is not None

    def command(self, folder: Path, words: str) -> list[str]:
        """Give a command of the server's as its user runs it."""
        assert self.programs is not None
        program, *rest = words.format(folder=folder, user=self.user, database=DATABASE).split()
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return ["env", f"TMPDIR={folder}", *become, str(self.programs / program), *rest]


def _find(pattern: str, program: str) -> Path | None:
    folders = sorted(Path("/usr").glob(pattern), reverse=True)
    return next((folder for folder in folders if (folder / program).exists()), None)


POSTGRESQL: Final = ServerKind(
    name="postgresql",
    user="postgres",
    driver="psycopg",
    programs=_find("lib/postgresql/*/bin", "postgres"),
    url="postgresql+psycopg://{user}:{password}@/{database}?host={folder}",
    initialize="initdb -D {folder}/data --auth=trust --no-sync --username={user} --encoding=UTF8 --locale=C",
    serve="postgres -D {folder}/data -k {folder} -c listen_addresses= -c fsync=off"
    " -c dynamic_shared_memory_type=mmap",  # what is killed would leave segments in /dev/shm
    create="createdb -h {folder} {database}",
)
MARIADB: Final = ServerKind(
    name="mariadb",
    user="mysql",
    driver="pymysql",
    programs=_find("sbin", "mariadbd"),
    url="mysql+pymysql://root:{password}@localhost/{database}?unix_socket={folder}/socket",
    initialize="../bin/mariadb-install-db --no-defaults --datadir={folder}/data --skip-test-db",
    serve="mariadbd --no-defaults --datadir={folder}/data --socket={folder}/socket"
    " --skip-networking --skip-grant-tables --innodb-flush-log-at-trx-commit=0",
    create="../bin/mariadb-admin --no-defaults --socket={folder}/socket create {database}",
)


@dataclass
class Server:
    """A running server, for as long as the test lets it."""

    kind: ServerKind
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return self.kind.url.format(folder=self.folder, user=self.kind.user, password=PASSWORD, database=DATABASE)

    def kill(self) -> None:
        """End it and all its helpers at once, as a machine that fails does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_server(kind: ServerKind) -> Iterator[Server]:
    """Run a server in a folder of its own, and leave nothing of it."""
    folder = Path("/tmp") / f"dltune-{kind.name}-{os.getpid()}"  # a socket's path is short
    folder.mkdir(mode=0o700)
    shutil.chown(folder, kind.user, kind.user)
    try:
        subprocess.run(kind.command(folder, kind.initialize), check=True, capture_output=True, cwd=folder)
        command = kind.command(folder, kind.serve)
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, cwd=folder)
        server = Server(kind, folder, process)
        await_success(lambda: subprocess.run(kind.command(folder, kind.create), check=False, capture_output=True))
        yield server
        if process.poll() is None:
            server.kill()
        _remove_segment(folder / "data" / "postmaster.pid")
    finally:
        shutil.rmtree(folder)


def await_success(attempt: Callable[[], subprocess.CompletedProcess[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (tried := attempt()).returncode:
        assert time.monotonic() < deadline, tried.stderr
        time.sleep(0.1)


def _remove_segment(note: Path) -> None:
    """Remove PostgreSQL's segment of System V, which outlives a server that is killed."""
    if note.exists():
        _, segment = note.read_text().splitlines()[6].split()
        subprocess.run(["ipcrm", "-m", segment], check=False)
