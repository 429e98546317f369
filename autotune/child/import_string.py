"""Resolves import strings such as `pkg.mod:attr`, the way uvicorn and entry points write them."""

from __future__ import annotations

import importlib
from operator import attrgetter
from pathlib import Path
from typing import Any

from autotune.errors import UsageError


def import_attribute(text: str) -> Any:
    """Import what `pkg.mod:attr` names; `attr` may be dotted. What the module itself raises comes through unchanged."""
    module_name, _, path = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise UsageError(f"{text}: No module named {error.name!r}, neither in {Path.cwd()} nor installed.") from None
    try:
        return attrgetter(path)(module)
    except AttributeError:
        place = getattr(module, "__file__", None) or "a namespace package"
        raise UsageError(f"{text}: {module_name} was imported from {place} but has no {path!r}.") from None
