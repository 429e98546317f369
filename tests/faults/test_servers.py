"""A record of trials on a database server: a real PostgreSQL, which the test starts on a socket of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.profiles.file import read_file
from autotune.search.storage import open_storage
from tests.faults.test_storage import BRIEF, make_command, run

pytest.importorskip("psycopg", reason="psycopg is not installed (make test-all installs it)")
BINARIES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
SERVER_USER = "postgres"  # whom Debian's package makes; the server refuses to run as root
START_SECONDS = 30.0
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.skipif(BINARIES is None or os.getuid() != 0, reason="needs Debian's postgresql, and root to start it"),
]


@dataclass
class Server:
    """A running server, for as long as the test lets it."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{SERVER_USER}:hidden@/postgres?host={self.folder}"

    def kill(self) -> None:
        """End it and all its helpers at once, as a machine that fails does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def as_server_user(*command: str | Path) -> list[str]:
    return ["setpriv", f"--reuid={SERVER_USER}", f"--regid={SERVER_USER}", "--clear-groups", *map(str, command)]


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path("/tmp") / f"dltune-pg-{os.getpid()}"  # a socket's path is short
    folder.mkdir(mode=0o700)
    user = pwd.getpwnam(SERVER_USER)
    os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        process = start_server(folder)
        await_server(folder)
        yield Server(folder, process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _, segment = (folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
        subprocess.run(["ipcrm", "-m", segment], check=False)  # of System V, which outlives a server that is killed
    finally:
        shutil.rmtree(folder)


def start_server(folder: Path) -> subprocess.Popen[bytes]:
    """Start a server that keeps nothing in /dev/shm: what is killed would leave it there."""
    assert BINARIES is not None
    making = ("--auth=trust", "--no-sync", f"--username={SERVER_USER}", "--encoding=UTF8", "--locale=C")
    initdb = as_server_user(BINARIES / "initdb", "-D", folder / "data", *making)
    subprocess.run(initdb, check=True, capture_output=True)
    settings = ("listen_addresses=", "fsync=off", "dynamic_shared_memory_type=mmap")
    options = [word for setting in settings for word in ("-c", setting)]
    command = as_server_user(BINARIES / "postgres", "-D", folder / "data", "-k", folder, *options)
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def await_server(folder: Path) -> None:
    assert BINARIES is not None
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run([BINARIES / "pg_isready", "-q", "-h", folder], check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_run_keeps_its_record_on_a_server_and_writes_no_password_down(server: Server, workdir: Path) -> None:
    command = make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, "--storage", server.url)
    finished = run(command)
    assert finished.returncode == 0, finished.stderr
    (profile,) = read_file(workdir / "dltune.json").profiles
    assert "hidden" not in (workdir / "dltune.json").read_text() + finished.stderr
    with open_storage(server.url) as storage:
        (study,) = storage.get_all_studies()
    assert study.study_name == profile.search.study


def test_a_server_that_is_killed_in_mid_run_costs_the_record_and_not_the_run(server: Server, workdir: Path) -> None:
    command = make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, "--storage", server.url)
    finished = run(command, server.kill)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("Trials can no longer be stored in postgresql+psycopg://postgres:***@") == 1
    assert read_file(workdir / "dltune.json").profiles[0].result.confirmed_rounds


def test_a_server_that_is_not_there_is_said_before_anything_is_measured(server: Server) -> None:
    server.kill()
    command = make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, "--storage", server.url)
    finished = run(command)
    assert finished.returncode != 0
    assert "postgresql+psycopg://postgres:***@" in finished.stderr
    assert "cannot be opened" in finished.stderr
