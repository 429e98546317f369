"""Finds modules below a folder, and distinguishes the user's code from libraries."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

ROOTS: Final = (str(Path(os.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)  # Python's, dltune's
INSTALLED: Final = {"site-packages", "dist-packages"}
MAX_FOLDERS: Final = 2000  # searched in one level and folder: a dataset may be below the current folder
_SKIPPED: Final = {*INSTALLED, "node_modules", "__pycache__", "build", "dist"}


def is_library(file: str) -> bool:
    """Return whether a file of Python code belongs to the interpreter, to an installed package, or to dltune."""
    return file.startswith(("<", *ROOTS)) or not INSTALLED.isdisjoint(Path(file).parts)


def find_module(name: str, folder: Path) -> Path | None:
    """Return the nearest file or package of a dotted module name below a folder; None if there is none."""
    level = [folder]
    for _ in range(4):  # levels
        files = (parent / (name.replace(".", "/") + end) for parent in level for end in (".py", "/__init__.py"))
        if (file := next(filter(Path.is_file, files), None)) is not None:
            return file
        inner = []
        for parent in level:
            with suppress(OSError), os.scandir(parent) as entries:
                found = [Path(entry) for entry in islice(entries, MAX_FOLDERS) if entry.is_dir(follow_symlinks=False)]
                inner += sorted(one for one in found if not one.name.startswith(".") and one.name not in _SKIPPED)
        level = inner[:MAX_FOLDERS]
    return None
