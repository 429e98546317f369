"""Imports the user's code: import strings (`pkg.mod:attr`, `train.py:attr`), and the script that workers import.

Workers that are not forked import what is `__main__` in this process. With --main, that is the script or module that
training is started by, which each worker then imports as it does in training.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from autotune.errors import UsageError
from autotune.import_strings import ImportString, split_import_string
from autotune.system.code_places import find_module

NAME_IN_WORKERS: Final = "__mp_main__"  # of the script; its `if __name__ == "__main__"` is then false


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
        place = file or "a namespace package"
        found = f"{parts.place} was imported from {place} but has no {parts.attribute!r}"
        close = difflib.get_close_matches(parts.attribute, vars(module))
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"{text}: {found}.{hint}") from None


def import_script(path: Path) -> ModuleType:
    """Import a script by its path: its folder is put where `python FILE` puts it, and it gets its name as a module.

    By that name workers that are not forked find what they are sent.
    """
    file, name = path.resolve(), path.stem
    if not file.is_file():
        found = find_module(path.stem, Path())
        raise UsageError(f"{path}: no such file in {Path.cwd()}.{'' if found is None else f' There is {found}.'}")
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


def become_script(main: str, dataset: str) -> None:
    """Let this process look to its workers as if it had been started by `python FILE`, or `python -m MODULE`.

    The script runs here, guards passed over, only where it holds the factory of the import string `dataset`: that is
    then the factory, so that workers find in the script what they are sent, and import it once.
    """
    is_file = main.endswith(".py")
    script = _make_script(Path(main)) if is_file else _make_module(main)
    if is_file:
        sys.path.insert(0, str(Path(main).resolve().parent))
    origin, named = script.__file__, split_import_string(dataset)
    if origin is not None and named is not None and _find_origin(named) == Path(origin):
        found = runpy.run_path(origin, run_name=NAME_IN_WORKERS) if is_file else _run_module(main)
        script.__dict__.update(found)
        sys.modules[named.module] = sys.modules[NAME_IN_WORKERS] = script
    sys.modules["__main__"] = script
    sys.argv[:] = [str(origin)]


def _make_script(file: Path) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"--main {file}: no such file in {Path.cwd()}.")
    return _make(str(file.resolve()), None)


def _make_module(name: str) -> ModuleType:
    spec = _find_spec(name)
    if spec is None or spec.origin is None:
        raise UsageError(f"--main {name}: neither a file that ends in .py nor a module that can be found.")
    return _make(spec.origin, spec)


def _make(origin: str, spec: ModuleSpec | None) -> ModuleType:
    script = ModuleType(NAME_IN_WORKERS)
    script.__file__, script.__spec__ = origin, spec
    return script


def _run_module(name: str) -> dict[str, Any]:
    return runpy.run_module(name, run_name=NAME_IN_WORKERS, alter_sys=True)


def _find_origin(named: ImportString) -> Path | None:
    """Find the file that an import string would be imported from; None where there is none."""
    if named.is_script:
        return Path(named.place).resolve()
    spec = _find_spec(named.place)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
