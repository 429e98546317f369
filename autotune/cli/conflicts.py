"""Is there a second package of our name? PyPI has one, and an experiment of one's own may be called `autotune`, too.

Whichever comes first on Python's search path is imported: `autotune.load` is then missing, or not ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = "autotune"
DISTRIBUTION: Final = "dltune"
PACKAGE_DIR: Final = Path(__file__).parents[1]


class ConflictingPackage(NamedTuple):
    """What Python could import in our place, and the distribution that installed it; empty where none did."""

    path: Path
    distribution: str = ""


def find_conflicts(
    search_path: Iterable[str] | None = None,
    ours: Path = PACKAGE_DIR,
    providers: Mapping[str, Sequence[str]] | None = None,
) -> tuple[ConflictingPackage, ...]:
    """Find them among installed distributions, on Python's search path and in the folder where training may start."""
    folders = (str(Path.cwd()), *sys.path) if search_path is None else search_path
    installed = metadata.packages_distributions() if providers is None else providers
    names = dict.fromkeys(installed.get(PACKAGE, ()))
    found = [ConflictingPackage(_locate(name), name) for name in names if name != DISTRIBUTION]
    known = {ours.resolve(), *(one.path for one in found)}
    lying = dict.fromkeys(path for folder in folders if (path := _find_package(folder)) is not None)
    return (*found, *(ConflictingPackage(path) for path in lying if path not in known))


def _locate(distribution: str) -> Path:
    """Give the place of a distribution's package; another distribution's files may lie there as well."""
    try:
        place = metadata.distribution(distribution).locate_file("")
    except metadata.PackageNotFoundError:
        return Path(PACKAGE)
    return _find_package(str(place)) or Path(str(place), PACKAGE)


def _find_package(folder: str) -> Path | None:
    """Find what `import autotune` would take from a folder, as Python looks for it: a package before a module."""
    for path in (Path(folder, PACKAGE, "__init__.py"), Path(folder, f"{PACKAGE}.py")):
        if os.path.isfile(path):  # noqa: PTH113  # false, too, where a folder may not be looked into
            return (path.parent if path.name == "__init__.py" else path).resolve()
    return None
