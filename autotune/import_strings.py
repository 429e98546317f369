"""Import strings: `pkg.mod:attr`, as uvicorn and entry points write them, or `train.py:attr` of a script."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final, NamedTuple

from autotune.errors import UsageError

_NAME: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_OF_A_MODULE: Final = re.compile(rf"({_NAME}):({_NAME})")
_OF_A_SCRIPT: Final = re.compile(rf"([^:\n\0]*[^:/\n\0]\.py):({_NAME})")


class ImportString(NamedTuple):
    """An import string in its parts.

    Attributes:
        place: The module's dotted name, or the path of a script.
        attribute: What it names there; may be dotted.
        is_script: Whether `place` is the path of a script.
    """

    place: str
    attribute: str
    is_script: bool

    @property
    def module(self) -> str:
        """The name that it is imported by; a script's is that of its file."""
        return PurePath(self.place).stem if self.is_script else self.place


def split_import_string(text: str) -> ImportString | None:
    """Take an import string apart; None where it is none."""
    if found := _OF_A_SCRIPT.fullmatch(text):  # before a module that would be called `train.py`
        return ImportString(found[1], found[2], is_script=True)
    if found := _OF_A_MODULE.fullmatch(text):
        return ImportString(found[1], found[2], is_script=False)
    return None


def check_import_string(option: str, text: str) -> str:
    """Refuse what an option gave and cannot be an import string, before anything is started.

    Raises:
        UsageError: It is neither of the form `pkg.mod:attr` nor of the form `train.py:attr`.
    """
    if split_import_string(text) is not None:
        return text
    hint = ""
    if text.endswith(".py"):
        hint = f" Name what the file holds, as in {text}:train_loader; `dltune {text}` says what there is."
    elif ":" not in text:
        hint = f" Is the attribute missing, as in {text}:make_dataset?"
    elif "/" in text:
        hint = " A module's name has dots: data/images is data.images; or give the file: data/images.py."
    raise UsageError(f"{option} {text}: not of the form package.module:attribute or file.py:attribute.{hint}")
