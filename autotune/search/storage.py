"""Opens the database that keeps the studies, and says what is wrong with it where it cannot be opened."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.storages import RDBStorage

from autotune.errors import StudyError
from autotune.request import hide_password
from autotune.system.mounts import find_mount
from autotune.system.own_folders import make_own_folder
from autotune.units import format_bytes

FOLDER: Final = ".dltune"
DATABASE: Final = "studies.db"
LOCAL_FOLDER: Final = Path("/var/tmp")  # it outlives a restart, and is seldom on a network
MAX_STORAGE_BYTES: Final = 2**31  # of a SQLite file; a thousand runs leave less, and a study is read as a whole
RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds; another run makes its tables in a few tenths
TRANSIENT_DB_ERROR: Final = re.compile(r"already exists|unique constraint|duplicate|is locked", re.IGNORECASE)
HINT_ELSEWHERE: Final = "Give another place with --storage sqlite:///FILE."
HINT_DRIVER: Final = (
    "That is the driver of the database: install it. pip install 'dltune[postgresql]' brings that of "
    "postgresql+psycopg://, and 'dltune[mysql]' that of mysql+pymysql://."
)


@contextmanager
def open_storage(url: str | None, warn: Callable[[str], None] = lambda sentence: None) -> Iterator[RDBStorage]:
    """Open the storage at an Optuna URL, and make it where it does not exist; None for SQLite under `.dltune/`.

    Where that would lie on a network file system, it is kept on a disk of this machine instead, and `warn` is told.

    Raises:
        StudyError: It cannot be opened, or it is larger than what can be read.
    """
    with _hush_logs():
        with explain(f"The record of trials at {name_place(url)} cannot be opened", HINT_ELSEWHERE):
            storage = _connect(url or _make_default(warn))
        try:
            _refuse_a_giant(storage)
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def _hush_logs() -> Iterator[None]:
    """Keep the libraries from logging what dltune says itself, and leave the caller's levels as they were."""
    pool = logging.getLogger("sqlalchemy.pool")  # shows where an interrupt cut it off
    before = optuna.logging.get_verbosity(), pool.level
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pool.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before[0])
        pool.setLevel(before[1])


def _connect(url: str) -> RDBStorage:
    """Connect to a storage and make its tables; try again where another run was making them at the same moment."""
    for pause in RETRY_DELAYS:
        try:
            return RDBStorage(url, engine_kwargs=_choose_pool(url))
        except Exception as error:  # each database says it in its own words
            if not TRANSIENT_DB_ERROR.search(find_reason(error)):
                raise
        time.sleep(pause)
    return RDBStorage(url, engine_kwargs=_choose_pool(url))


def _choose_pool(url: str) -> dict[str, Any]:
    """Keep two connections to a server at most, for many runs share it, and look whether they still live."""
    return {} if url.startswith("sqlite") else {"pool_size": 1, "max_overflow": 1, "pool_pre_ping": True}


def _make_default(warn: Callable[[str], None]) -> str:
    folder = Path(FOLDER)
    mount = find_mount(folder if folder.exists() else Path())
    if mount is not None and mount.kind == "network":
        with contextlib.suppress(OSError):
            local = _make_local_folder()
            warn(
                f"{FOLDER}/ would lie on {mount.filesystem} ({mount.device}), whose locks SQLite cannot rely on: the "
                f"record of trials is kept in {local}. --storage sqlite:///{FOLDER}/{DATABASE} keeps it here."
            )
            return f"sqlite:///{local / DATABASE}"
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return f"sqlite:///{folder / DATABASE}"


def _make_local_folder() -> Path:
    """Make a folder of the user's own on a disk of this machine, for the current folder alone."""
    own = LOCAL_FOLDER / f"dltune-{os.getuid()}"
    if not make_own_folder(own):
        raise StudyError(f"{own} belongs to somebody else. {HINT_ELSEWHERE}")
    folder = own / hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def name_place(url: str | None) -> str:
    """Name a storage as the user knows it, without the password in it."""
    return f"{FOLDER}/{DATABASE}" if url is None else hide_password(url)


def find_file(storage: RDBStorage) -> Path | None:
    """Find the file of a SQLite storage; None for a server, or a database in memory."""
    url = storage.engine.url
    in_memory = url.database in (None, "", ":memory:") or str(url.database).startswith("file:")
    return None if url.get_backend_name() != "sqlite" or in_memory else Path(str(url.database))


def _refuse_a_giant(storage: RDBStorage) -> None:
    file = find_file(storage)
    size = file.stat().st_size if file is not None and file.exists() else 0
    if size > MAX_STORAGE_BYTES:
        raise StudyError(
            f"The record of trials at {file} holds {format_bytes(size)}, which is more than the "
            f"{format_bytes(MAX_STORAGE_BYTES)} that can be read. Move it away, or give another place with --storage "
            "sqlite:///FILE."
        )


@contextmanager
def explain(failure: str, advice: str) -> Iterator[None]:
    """Turn whatever a storage raises into a sentence: it raises what its database, its driver and its parser do."""
    try:
        yield
    except StudyError:
        raise
    except Exception as error:
        lacks_driver = isinstance(_find_root(error), ModuleNotFoundError)
        raise StudyError(f"{failure}: {find_reason(error)}. {HINT_DRIVER if lacks_driver else advice}") from error


def _find_root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def find_reason(error: BaseException) -> str:
    """Give the first line of the innermost error: the database's own words."""
    error = _find_root(error)
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
