"""A record of trials on a database server, which the test starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.profiles.store import read_file
from autotune.search.storage import open_storage
from tests.faults.servers import MARIADB, PASSWORD, POSTGRESQL, Server, ServerKind, run_server
from tests.faults.test_storage import BRIEF, make_command, run

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.fixture(params=[POSTGRESQL, MARIADB], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kind: ServerKind = request.param
    if not kind.is_available():
        pytest.skip(f"needs Debian's {kind.name}, {kind.driver}, and root to start it")
    with run_server(kind) as server:
        yield server


def make_short_run(server: Server) -> list[str]:
    return make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, "--storage", server.url)


def hide(server: Server) -> str:
    """Give the beginning of its URL as it may be shown."""
    return server.url.partition(PASSWORD)[0] + "***@"


def test_a_run_keeps_its_record_on_a_server_and_writes_no_password_down(server: Server, workdir: Path) -> None:
    finished = run(make_short_run(server))
    assert finished.returncode == 0, finished.stderr
    (profile,) = read_file(workdir / "dltune.json").profiles
    assert PASSWORD not in (workdir / "dltune.json").read_text() + finished.stderr
    with open_storage(server.url) as storage:
        (study,) = storage.get_all_studies()
    assert study.study_name == profile.search.study


def test_a_server_that_is_killed_in_mid_run_costs_the_record_and_not_the_run(server: Server, workdir: Path) -> None:
    finished = run(make_short_run(server), server.kill)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count(f"Trials can no longer be stored in {hide(server)}") == 1
    assert read_file(workdir / "dltune.json").profiles[0].result.validation_runs


def test_a_server_that_is_not_there_is_said_before_anything_is_measured(server: Server) -> None:
    server.kill()
    finished = run(make_short_run(server))
    assert finished.returncode != 0
    assert hide(server) in finished.stderr
    assert "cannot be opened" in finished.stderr
