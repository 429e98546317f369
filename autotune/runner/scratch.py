"""The private folder of a trial's processes: locked while its owner lives, swept when that was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from filelock import FileLock

PREFIX: Final = "dltune-"
NAME: Final = re.compile(rf"{PREFIX}\d+-[a-z0-9_]{{8}}")  # process number, and what mkdtemp() adds
LOCK_FILE: Final = ".dltune-claim"
MAX_TMPDIR_LENGTH: Final = 60  # characters; AF_UNIX paths end at 108


@contextmanager
def make_scratch() -> Iterator[Path]:
    """Make a private folder whose path leaves room for the socket names that torch puts there, and remove it again."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(usual) <= MAX_TMPDIR_LENGTH else "/tmp")
    sweep_scratch(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    try:
        with lock_folder(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; its file gets its name when it is locked, so no sweep is earlier."""
    unnamed = folder / f"{LOCK_FILE}-to-be"
    with FileLock(unnamed, blocking=False, thread_local=False):
        unnamed.rename(folder / LOCK_FILE)
        yield


def sweep_scratch(parent: Path) -> None:
    """Remove the folders of our own runs that were killed before they could; a folder without a lock is not ours."""
    for folder in parent.glob(f"{PREFIX}*"):
        if NAME.fullmatch(folder.name) and not folder.is_symlink() and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Tell whether nobody holds our lock: process numbers say nothing where containers share a /tmp."""
    lock_file = folder / LOCK_FILE
    with suppress(OSError):
        if folder.lstat().st_uid == lock_file.lstat().st_uid == os.geteuid():
            with FileLock(lock_file, blocking=False):
                return True
    return False
