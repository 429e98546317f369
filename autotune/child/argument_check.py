"""Is a factory given what it needs? Said before it is called, since its own error names neither option nor example."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection
from typing import Any

from autotune.errors import UsageError
from autotune.profiles.factory_arguments import list_parameters, takes


def check_arguments(factory: Any, given: Collection[str], source: str) -> None:
    """Refuse what a factory does not take, and to call it without what it needs; what is none is not looked at.

    Raises:
        UsageError: The message names the arguments.
    """
    if not callable(factory):
        return
    try:
        parameters = list_parameters(factory)
    except (TypeError, ValueError):  # one that is compiled, say, does not tell
        return
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for name in given:
        if not takes(factory, name):
            raise UsageError(f"--dataset-arg {name}: {source} takes no such argument{_describe(name, named)}")
    missing = [one.name for one in named if one.default is one.empty and one.name not in given]
    if missing:
        options = " ".join(f"--dataset-arg {name}=..." for name in missing)
        raise UsageError(
            f"{source} must be given {' and '.join(missing)}: {options} (JSON or a bare word). What JSON cannot say "
            f"is made by a function of your own that calls {source.partition(':')[2]}."
        )


def _describe(name: str, named: Collection[inspect.Parameter]) -> str:
    names = [one.name for one in named]
    close = difflib.get_close_matches(name, names, n=1)
    return f". Is {close[0]} meant?" if close else f"; it takes {', '.join(names) or 'none'}."
