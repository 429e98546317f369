"""Resolves import strings: `pkg.mod:attr`, the way uvicorn and entry points write them, and `train.py:attr`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import UsageError
from autotune.import_strings import split_import_string
from autotune.scripts.importing import explain_missing
from autotune.scripts.places import find_module, suggest_file


def import_attribute(text: str) -> Any:
    """Import what an import string names; what the module itself raises comes through unchanged.

    Raises:
        UsageError: There is no such module or script, or it has no such attribute.
    """
    parts = split_import_string(text)
    if parts is None:
        raise UsageError(f"{text}: not of the form package.module:attribute or file.py:attribute.")
    module = import_script(Path(parts.place)) if parts.is_script else _import_module(parts.place, parts.attribute)
    try:
        return attrgetter(parts.attribute)(module)
    except AttributeError:
        file = getattr(module, "__file__", None)
        explained = explain_missing(_shorten(Path(file)), parts.attribute) if file else ""
        place = file or "a namespace package"
        found = f"{parts.place} was imported from {place} but has no {parts.attribute!r}"
        raise UsageError(f"{text}: {found}.{explained}") from None


def import_script(path: Path) -> ModuleType:
    """Import a script by its path: its folder is put where `python FILE` puts it, and it gets its name as a module.

    By that name workers that are not forked find what they are sent.
    """
    file, name = path.resolve(), path.stem
    if not file.is_file():
        raise UsageError(f"{path}: no such file in {Path.cwd()}.{suggest_file(path)}")
    sys.path.insert(0, str(file.parent))
    known = sys.modules.get(name)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == file:
            return known
        raise UsageError(f"{path}: there is a module {name} of another place already. Give the file another name.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str, attribute: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        problem = f"{name}:{attribute}: No module named {error.name!r}, neither in {Path.cwd()} nor installed."
    found = find_module(name, Path())
    way_out = f" There is {found}: name it by its path, {found}:{attribute}" if found is not None else ""
    raise UsageError(f"{problem}{way_out}")


def _shorten(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
