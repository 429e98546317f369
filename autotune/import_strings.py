"""Import strings: `pkg.mod:attr`, as uvicorn and entry points use them, or `train.py:attr` for a script.

Child processes import the workload by such a string; nothing is pickled.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import ModuleType
from typing import Final, NamedTuple

from autotune.errors import UsageError

_NAME: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_OF_A_MODULE: Final = re.compile(rf"({_NAME}):({_NAME})")
_OF_A_SCRIPT: Final = re.compile(rf"([^:\n\0]*[^:/\n\0]\.py):({_NAME})")


class ImportString(NamedTuple):
    """The parts of an import string."""

    place: str  # the module's dotted name, or the path of a script
    attribute: str  # may be dotted
    is_script: bool

    @property
    def module(self) -> str:
        """The name that it is imported by; a script's is that of its file."""
        return PurePath(self.place).stem if self.is_script else self.place


def split_import_string(text: str) -> ImportString | None:
    """Split an import string; None if the text is not one."""
    if found := _OF_A_SCRIPT.fullmatch(text):  # before a module named `train.py`
        return ImportString(found[1], found[2], is_script=True)
    if found := _OF_A_MODULE.fullmatch(text):
        return ImportString(found[1], found[2], is_script=False)
    return None


def check_import_string(option: str, text: str) -> str:
    """Check the form of an option's import string.

    Raises:
        UsageError: It is neither of the form `pkg.mod:attr` nor of the form `train.py:attr`.
    """
    if split_import_string(text) is not None:
        return text
    hint = ""
    if text.endswith(".py"):
        hint = f" Name a function in the file, as in {text}:make_loader."
    elif ":" not in text:
        hint = f" Is the attribute missing, as in {text}:make_dataset?"
    elif "/" in text:
        hint = " A module's name has dots: data/images is data.images; or pass the file: data/images.py."
    raise UsageError(f"{option} {text}: not of the form package.module:attribute or file.py:attribute.{hint}")


def find_import_string(value: object) -> str:
    """Find the import string of an in-memory object.

    Raises:
        UsageError: It is not a module-level name, or its module is not a file.
    """
    qualified = getattr(value, "__qualname__", None) if callable(value) else None
    if isinstance(qualified, str) and "<" in qualified:
        raise UsageError(
            f"{qualified} is a lambda, or defined inside a function, so a trial cannot import it. Define it at module "
            "level with def, and pass that."
        )
    found = sorted(_find_names(value, qualified), key=lambda one: one[0].__name__ == "__main__")
    if not found:
        raise UsageError(
            f"This {type(value).__name__} is not a module-level name, so a trial cannot import it. Define a function "
            "at module level, def make_loader(): ..., and pass that: tune(make_loader)."
        )
    module, name = found[0]
    return _name_in_main(module, name) if module.__name__ == "__main__" else _name_in(module, name)


def _find_names(value: object, qualified: str | None) -> Iterator[tuple[ModuleType, str]]:
    """Find the modules that hold an object, and its name there; for a function or class, its own module."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if qualified is not None and home is not None:
        yield home, qualified
        return
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            yield from ((module, name) for name, one in list(vars(module).items()) if one is value and name != "_")


def _name_in_main(module: ModuleType, name: str) -> str:
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"{name} exists only in this notebook or interpreter, and trials import it by name. Write the code that "
            "makes it to a file (in a notebook, by a cell that begins with %%writefile loaders.py), and import it from "
            "there: from loaders import train_loader"
        )
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:  # python -m
        return f"{spec.name.removesuffix('.__main__')}:{name}"
    return f"{os.path.relpath(file)}:{name}"


def _name_in(module: ModuleType, name: str) -> str:
    """Name it by its module, or by its file if only the folder of the started script makes the module importable."""
    file = getattr(module, "__file__", None)
    main = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or main is None or "." in module.__name__:
        return f"{module.__name__}:{name}"
    folder = Path(file).resolve().parent
    is_next_to_main = folder == Path(main).resolve().parent and folder != Path.cwd().resolve()
    return f"{os.path.relpath(file)}:{name}" if is_next_to_main else f"{module.__name__}:{name}"
