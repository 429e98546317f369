"""A storage that can be opened, and what is said of one that cannot."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import optuna
import pytest

from autotune.errors import StudyError
from autotune.search import storage
from autotune.search.storage import open_storage
from autotune.system.mounts import Mount
from tests.search.studies import read_records

pytestmark = pytest.mark.usefixtures("workdir")


def test_a_storage_that_is_no_database_is_a_clear_error(workdir: Path) -> None:
    (workdir / "noise.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StudyError, match=r"noise\.db cannot be opened: file is not a database\. .* --storage"):
        read_records(storage="sqlite:///noise.db")


def test_a_database_whose_driver_is_missing_is_told_with_what_brings_one() -> None:
    with pytest.raises(StudyError, match=r"No module named 'cx_Oracle'\. .*pip install 'dltune\[postgresql\]'"):
        open_storage("oracle+cx_oracle://ada@localhost/db").__enter__()


def test_a_storage_of_gigabytes_is_refused_with_its_size(workdir: Path) -> None:
    read_records(storage="sqlite:///big.db")
    with (workdir / "big.db").open("r+b") as file:
        file.truncate(3 * 2**30)
    with pytest.raises(StudyError, match=r"holds 3\.0 GiB, which is more than the 2\.0 GiB"):
        read_records(storage="sqlite:///big.db")


@pytest.mark.parametrize("url", ["sqlite:///mine.db", "nonsense://there/db"])
def test_the_log_levels_of_the_caller_are_as_they_were_after_a_run(url: str) -> None:
    pool = logging.getLogger("sqlalchemy.pool")
    before = optuna.logging.get_verbosity(), pool.level
    try:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pool.setLevel(logging.INFO)
        with suppress(StudyError), open_storage(url):
            assert (optuna.logging.get_verbosity(), pool.level) == (logging.ERROR, logging.CRITICAL)
        assert (optuna.logging.get_verbosity(), pool.level) == (logging.WARNING, logging.INFO)
    finally:
        optuna.logging.set_verbosity(before[0])
        pool.setLevel(before[1])


@pytest.fixture
def on_nfs(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the current folder lie on a network file system, and give the folder that stands for a local disk."""
    local = workdir / "disk"
    local.mkdir()
    there = Mount(workdir, "nfs4", "server:/home", "/home")
    monkeypatch.setattr(storage, "find_mount", lambda path: there)
    monkeypatch.setattr(storage, "LOCAL_FOLDER", local)
    return local


def test_the_record_is_kept_off_a_network_file_system_and_that_is_said(on_nfs: Path) -> None:
    said: list[str] = []
    for _ in range(2):  # the next run finds it again
        with open_storage(None, said.append) as found:
            assert Path(str(found.engine.url.database)).is_relative_to(on_nfs)
    assert said[0].startswith(".dltune/ would lie on nfs4 (server:/home), whose locks SQLite cannot rely on")
    assert said[0] == said[1]
    assert not Path(".dltune").exists()


def test_a_local_folder_that_somebody_else_has_made_is_not_used(on_nfs: Path) -> None:
    (on_nfs / f"dltune-{os.getuid()}").symlink_to("/tmp")
    with (
        pytest.raises(StudyError, match=r"belongs to somebody else\. Give another place with --storage"),
        open_storage(None),
    ):
        pass


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(StudyError) as caught, open_storage("nonsense://me:secret@host/trials"):
        pass
    assert "secret" not in str(caught.value)


def test_a_database_of_a_newer_optuna_is_a_clear_error() -> None:
    read_records()
    with sqlite3.connect(".dltune/studies.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
    connection.close()
    with pytest.raises(StudyError, match=r"no longer compatible .* Give another place with --storage"):
        read_records()
