"""Where a module or a script lies that was not found where the user looked for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

MAX_FOLDERS: Final = 2000  # looked into: a data set may lie below the current folder
MAX_DEPTH: Final = 4
_SKIPPED: Final = {"node_modules", "site-packages", "__pycache__", "build", "dist"}


def find_module(name: str, folder: Path) -> Path | None:
    """Find the file or package of a dotted module name in the folders below one; None where there is none."""
    relative = Path(*name.split("."))
    for place in _walk(folder):
        for candidate in (place / relative.with_suffix(".py"), place / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def suggest_file(path: Path) -> str:
    """Say where else a file of this name lies, as the end of a refusal; empty where nowhere."""
    found = next((place / path.name for place in _walk(Path()) if (place / path.name).is_file()), None)
    return "" if found is None else f" There is {found}."


def _walk(folder: Path) -> Iterator[Path]:
    """Go through the folder and those below it, the nearest first."""
    level = [folder]
    for _ in range(MAX_DEPTH):
        yield from level
        level = [child for place in level for child in islice(_list_folders(place), MAX_FOLDERS)][:MAX_FOLDERS]


def _list_folders(place: Path) -> Iterator[Path]:
    try:
        with os.scandir(place) as entries:
            found = [entry.name for entry in islice(entries, MAX_FOLDERS) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    yield from (place / name for name in sorted(found) if not name.startswith(".") and name not in _SKIPPED)
