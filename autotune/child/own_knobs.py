"""The knobs that the user's own factory has: which of them it takes, and what they are where nothing is asked."""

from __future__ import annotations

import inspect
from typing import Any

from autotune.config import KnobValue
from autotune.errors import UsageError
from autotune.profiles.factory_arguments import list_parameters, takes
from autotune.request import WorkloadRequest


def settle_knobs(factory: Any, request: WorkloadRequest) -> dict[str, KnobValue]:
    """Give each knob of a request the value that the factory has by itself, or the choice that is nearest to it.

    Raises:
        UsageError: The factory does not take one of them.
    """
    return {name: _settle(factory, request, name) for name in request.knobs}


def _settle(factory: Any, request: WorkloadRequest, name: str) -> KnobValue:
    choices = request.knobs[name]
    default = _read_default(factory, name, request.dataset)
    if default in choices:
        return next(choice for choice in choices if choice == default)
    if isinstance(default, int | float) and not any(isinstance(choice, str) for choice in choices):
        return min(choices, key=lambda choice: abs(float(choice) - default))
    return choices[0]


def _read_default(factory: Any, name: str, source: str) -> Any:
    """Read what a factory gives an argument by itself; None where it gives nothing, or nothing that can be told."""
    if not callable(factory) or not takes(factory, name):
        raise UsageError(f"--knob {name}: {source} takes no such argument{_list_taken(factory)}.")
    found = next((one.default for one in list_parameters(factory) if one.name == name), None)
    return None if found is inspect.Parameter.empty else found


def _list_taken(factory: Any) -> str:
    names = [one.name for one in list_parameters(factory)] if callable(factory) else []
    return f"; it takes {', '.join(names)}" if names else ""


def describe_changed_defaults(factory: Any, request: WorkloadRequest) -> str | None:
    """Say where the baseline is not what the factory does by itself; None where it is."""
    changes = []
    for name, choices in request.knobs.items():
        default = _read_default(factory, name, request.dataset)
        if default is not None and default not in choices:
            changes.append(f"{name}={_settle(factory, request, name)} instead of {default}")
    if not changes:
        return None
    return f"the baseline is your function with {', '.join(changes)}: what it does by itself is none of the choices"
