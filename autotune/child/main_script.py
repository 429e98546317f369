"""What do workers that are not forked meet as `__main__`? The script that training is started by, if it was named.

`multiprocessing` tells a spawned worker, or the server that forks workers, to import what is `__main__` in this
process. So that is put into its place, and each interpreter goes about it in its own way, as it will in training.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from autotune.errors import UsageError
from autotune.import_strings import ImportString, split_import_string

NAME_IN_WORKERS: Final = "__mp_main__"  # of the script, by which `if __name__ == "__main__"` is passed over


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


def read_script() -> str | None:
    """Give the file of the script that this process looks to have been started by; None where none was named."""
    main = sys.modules["__main__"]
    is_script = main.__name__ == NAME_IN_WORKERS and main.__spec__ is None
    return main.__file__ if is_script else None


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
