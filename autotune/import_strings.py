"""Import strings, `pkg.mod:attr` or `train.py:attr`: child processes import the workload by them, without pickle."""

from __future__ import annotations

import os
import re
import sys
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
    """Return an option's import string; raise UsageError if it is malformed."""
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
    """Return the import string of an object; raise UsageError if it is no module-level name of a file."""
    qualified = getattr(value, "__qualname__", None) if callable(value) else None
    if isinstance(qualified, str) and "<" in qualified:
        raise UsageError(
            f"{qualified} is a lambda, or defined inside a function, so a trial cannot import it. Define it at module "
            "level with def, and pass that."
        )
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if qualified is not None and home is not None:  # a function or class
        found = [(home, qualified)]
    else:
        modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
        held = ((module, name) for module in modules for name, one in list(vars(module).items()) if one is value)
        found = sorted((one for one in held if one[1] != "_"), key=lambda one: one[0].__name__ == "__main__")
    if not found:
        raise UsageError(
            f"This {type(value).__name__} is not a module-level name, so a trial cannot import it. Define a function "
            "at module level, def make_loader(): ..., and pass that: tune(make_loader)."
        )
    module, name = found[0]
    file, main = (getattr(one, "__file__", None) for one in (module, sys.modules["__main__"]))
    if module.__name__ != "__main__":
        if file is not None and main is not None and "." not in module.__name__:
            folder = Path(file).resolve().parent
            if folder == Path(main).resolve().parent and folder != Path.cwd().resolve():
                return f"{os.path.relpath(file)}:{name}"  # only the folder of the script makes the module importable
        return f"{module.__name__}:{name}"
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
