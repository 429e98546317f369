"""Imports the user's code by import strings (`pkg.mod:attr`, `train.py:attr`)."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import UsageError
from autotune.request import split_import_string


def import_attribute(text: str) -> Any:
    """Import an attribute by its import string, or raise UsageError; errors of the module itself are not changed."""
    parts = split_import_string(text)
    if parts is None:
        raise UsageError(f"{text}: not of the form package.module:attribute or file.py:attribute.")
    module = import_script(Path(parts.place)) if parts.is_script else _import_module(parts.place, parts.attribute)
    try:
        return attrgetter(parts.attribute)(module)
    except AttributeError:
        close = difflib.get_close_matches(parts.attribute, vars(module))
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        origin = getattr(module, "__file__", None) or "a namespace package"
        problem = f"{parts.place} was imported from {origin} but has no {parts.attribute!r}"
        raise UsageError(f"{text}: {problem}.{hint}") from None


def import_script(path: Path) -> ModuleType:
    """Import a script as a module of its name, by which spawned workers find it: its folder is first in `sys.path`."""
    file, name = path.resolve(), path.stem
    if not file.is_file():
        raise UsageError(f"{path}: no such file in {Path.cwd()}.")
    sys.path.insert(0, str(file.parent))
    known = sys.modules.get(name)
    if known is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == file:
            return known
        raise UsageError(f"{path}: another module is called {name}. Give the file another name.")
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
            raise  # the module exists; one that it imports does not
        problem = f"No module named {error.name!r}, neither in {Path.cwd()} nor installed"
        hint = f"If its file is elsewhere, pass the path, as in src/{name.replace('.', '/')}.py:{attribute}."
        raise UsageError(f"{name}:{attribute}: {problem}. {hint}") from None
