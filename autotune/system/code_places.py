"""Finds modules below a folder, and distinguishes the user's code from libraries."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Final

ROOTS: Final = (str(Path(os.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)  # Python's, dltune's
INSTALLED: Final = ("site-packages", "dist-packages")  # folders
MAX_FOLDERS: Final = 2000  # that are searched: a dataset may be below the current folder
MAX_DEPTH: Final = 4
_SKIPPED: Final = {*INSTALLED, "node_modules", "__pycache__", "build", "dist"}


def is_library(file: str) -> bool:
    """Return whether a file of Python code belongs to the interpreter, to an installed package, or to dltune."""
    return file.startswith(("<", *ROOTS)) or not set(INSTALLED).isdisjoint(Path(file).parts)


def find_module(name: str, folder: Path) -> Path | None:
    """Find the file or package of a dotted module name below a folder; None if there is none."""
    relative = Path(*name.split("."))
    return find_file((relative.with_suffix(".py"), relative / "__init__.py"), folder)


def find_file(paths: tuple[Path, ...], folder: Path) -> Path | None:
    """Find the nearest file with one of these relative paths below a folder; None if there is none."""
    level = [folder]
    for _ in range(MAX_DEPTH):
        for candidate in (parent / path for parent in level for path in paths):
            if candidate.is_file():
                return candidate
        level = list(islice((child for parent in level for child in _list_folders(parent)), MAX_FOLDERS))
    return None


def _list_folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            found = [entry.name for entry in islice(entries, MAX_FOLDERS) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [parent / name for name in sorted(found) if not name.startswith(".") and name not in _SKIPPED]
