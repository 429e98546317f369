"""Which of the settings does a class or function take that makes loaders?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

WITHOUT_WORKERS: Final = {"prefetch_factor": None, "persistent_workers": False, "in_order": True}


def list_parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """List the parameters of a function, or of a class's `__init__` without `self`."""
    if isinstance(make, type):
        return list(inspect.signature(make.__init__).parameters.values())[1:]  # type: ignore[misc]  # not called
    return list(inspect.signature(make).parameters.values())


def takes(make: Callable[..., Any], name: str) -> bool:
    """Tell whether it has a parameter of this name, or takes any."""
    return any(one.kind is one.VAR_KEYWORD or one.name == name for one in list_parameters(make))


def choose_arguments(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the arguments to give it.

    Args:
        make: The class or function.
        settings: Arguments of DataLoader, without those that it refuses beside `num_workers=0`.

    Returns:
        Of the settings what it takes; and where there are no workers, for parameters that only they need, the values
        that DataLoader takes then: its own defaults may be others.
    """
    found = {name: value for name, value in settings.items() if takes(make, name)}
    if settings.get("num_workers") == 0:
        named = {one.name for one in list_parameters(make)}
        found |= {name: value for name, value in WITHOUT_WORKERS.items() if name in named}
    return found
