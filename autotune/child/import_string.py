"""Resolves import strings such as `pkg.mod:attr`, the way uvicorn and entry points write them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

from autotune.errors import UsageError

_IMPORT_STRING: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check_import_string(option: str, text: str) -> str:
    """Refuse what cannot be an import string, before anything is started.

    Args:
        option: Name of the option, for the message.
        text: What the user gave.

    Returns:
        The text.

    Raises:
        UsageError: It is not of the form `pkg.mod:attr`.
    """
    if _IMPORT_STRING.fullmatch(text):
        return text
    hint = ""
    if text.endswith(".py") or "/" in text:
        hint = " Give the module's dotted name, not its file: data/images.py is data.images."
    elif ":" not in text:
        hint = f" Is the attribute missing, as in {text}:make_dataset?"
    raise UsageError(f"{option} {text}: not of the form package.module:attribute.{hint}")


def import_attribute(text: str) -> Any:
    """Import what an import string names.

    Args:
        text: `pkg.mod:attr`, where `attr` may be dotted.

    Returns:
        The attribute.

    Raises:
        UsageError: There is no such module, or it has no such attribute.
        Exception: Whatever importing the module raises.
    """
    module_name, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise UsageError(f"{text}: No module named {error.name!r}, neither in {Path.cwd()} nor installed.") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{text}: {module_name} was imported from {_locate(module_name)} but has no {path!r}.")
        found = getattr(found, name)
    return found


def _locate(module_name: str) -> str:
    return getattr(importlib.import_module(module_name), "__file__", None) or "a namespace package"
