"""Resolves import strings such as `pkg.mod:attr`, the way uvicorn and entry points write them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from autotune.errors import UsageError


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
