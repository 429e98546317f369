"""Imports the user's code: import strings (`pkg.mod:attr`, `train.py:attr`), and the script that workers import."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from autotune.errors import UsageError
from autotune.request import split_import_string
from autotune.system.software import find_module

NAME_IN_WORKERS: Final = "__mp_main__"  # of the script; its `if __name__ == "__main__"` is then false


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
        found = find_module(path.stem, Path())
        raise UsageError(f"{path}: no such file in {Path.cwd()}.{'' if found is None else f' There is {found}.'}")
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
        problem = f"{name}:{attribute}: No module named {error.name!r}, neither in {Path.cwd()} nor installed."
    found = find_module(name, Path())
    raise UsageError(problem if found is None else f"{problem} There is {found}: use its path, {found}:{attribute}")


def become_script(main: str, dataset: str) -> None:
    """Let workers that are not forked import the training script or module, as if this process had been started by it.

    The script runs here, without its guarded part, only if the import string `dataset` names a factory in it: workers
    then find the factory's objects in the script, and import it once.
    """
    is_file, spec = main.endswith(".py"), _find_spec(main)
    origin = Path("" if spec is None else spec.origin or "").resolve()
    if spec is None or not origin.is_file():
        problem = f"no such file in {Path.cwd()}" if is_file else "neither a file that ends in .py nor a module"
        raise UsageError(f"--main {main}: {problem}.")
    if is_file:
        sys.path.insert(0, str(origin.parent))
    script = importlib.util.module_from_spec(spec)
    script.__name__, script.__spec__ = NAME_IN_WORKERS, None if is_file else spec
    named = split_import_string(dataset)
    factory = None if named is None else _find_spec(named.place)
    if named is not None and factory is not None and Path(factory.origin or "").resolve() == origin:
        sys.modules[named.module] = sys.modules[NAME_IN_WORKERS] = script
        exec(compile(origin.read_bytes(), origin, "exec"), vars(script))  # noqa: S102  # the user's own script
    sys.modules["__main__"] = script
    sys.argv[:] = [str(origin)]


def _find_spec(place: str) -> ModuleSpec | None:
    """Return the spec of a script by its path, or of a module by its name if there is one."""
    if place.endswith(".py"):
        return importlib.util.spec_from_file_location(Path(place).stem, Path(place).resolve())
    try:
        return importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return None
