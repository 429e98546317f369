"""Lists the names of `import autotune` for mkdocstrings, which writes down their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import autotune

GROUPS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "Functions": inspect.isfunction,
    "Values": lambda value: inspect.isclass(value) and not issubclass(value, Exception),
    "Errors": lambda value: inspect.isclass(value) and issubclass(value, Exception),
}


def describe_names() -> str:
    """Write the headings, and a directive for each name below its own."""
    return "\n\n".join(
        "\n\n".join([f"## {group}", *(f"::: autotune.{name}" for name in list_names(group))]) for group in GROUPS
    )


def list_names(group: str) -> list[str]:
    """List the public names of a group."""
    return [name for name in autotune.__all__ if GROUPS[group](getattr(autotune, name))]
