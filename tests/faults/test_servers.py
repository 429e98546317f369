"""An Optuna storage on a PostgreSQL server, which the test starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from autotune.profiles.store import read_file
from tests.faults.servers import PASSWORD, Server, find_lack, run_server
from tests.faults.test_storage import BRIEF, count_trials, make_command, run

pytestmark = pytest.mark.usefixtures("workdir")


@pytest.fixture
def server() -> Iterator[Server]:
    if (lack := find_lack()) is not None:
        pytest.skip(lack)
    with run_server() as server:
        yield server


def make_short_run(server: Server) -> list[str]:
    storage = ("--storage", server.url, "--study-name", "kept")
    return make_command("--dataset", "tests.misbehaving:make_honest", *BRIEF, *storage)


def hide(server: Server) -> str:
    """Return the beginning of its URL without the password."""
    return server.url.partition(PASSWORD)[0] + "***@"


def test_a_run_stores_its_trials_on_a_server_and_writes_no_password_anywhere(server: Server, workdir: Path) -> None:
    finished = run(make_short_run(server))
    assert finished.returncode == 0, finished.stderr
    assert PASSWORD not in (workdir / "dltune.json").read_text() + finished.stderr + finished.stdout
    storage = optuna.storages.RDBStorage(server.url)
    study = optuna.load_study(study_name="kept", storage=storage)
    assert len(study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))) == count_trials(workdir / "dltune.json")
    storage.remove_session()
    storage.engine.dispose()  # psycopg warns of connections that are left open


def test_a_server_that_is_killed_during_a_run_ends_it_with_the_best_so_far(server: Server, workdir: Path) -> None:
    finished = run(make_short_run(server), server.kill)
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count(f"The study in {hide(server)}") == 1
    assert PASSWORD not in finished.stderr
    assert not read_file(workdir / "dltune.json").profiles[0].is_validated


def test_a_server_that_is_not_there_is_reported_before_anything_is_measured(server: Server) -> None:
    server.kill()
    finished = run(make_short_run(server))
    assert finished.returncode != 0
    assert hide(server) in finished.stderr
    assert "cannot be opened" in finished.stderr
    assert PASSWORD not in finished.stderr
