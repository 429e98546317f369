"""The command that asks for a recorded run again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pydantic import ValidationError

from autotune.request import TuningRequest
from autotune.units import SECOND_UNITS, parse_seconds

_FLAGS: Final = {
    "dataset_args": "--dataset-arg",
    "knobs": "--knob",
    "step_seconds": "--step-time",
    "batch_sizes": "--batch-size",
    "fixed": "--fix",
    "ranges": "--range",
    "timeout_seconds": "--timeout",
    "trial_seconds": "--trial-time",
    "stall_seconds": "--stall-time",
}  # of the fields whose options have other names
MAX_COUNT_OF_UNIT: Final = 1000  # a larger number is better read in the next unit


def describe_command(recorded: Mapping[str, Any] | None) -> str | None:
    """Write the shell command that repeats a run, in the folder of the code; None where no readable request is kept."""
    try:
        request = TuningRequest.model_validate(recorded)
    except ValidationError:
        return None
    options = [shlex.join(words) for words in _list_options(request)]
    return " \\\n  ".join(["dltune", *options])


def _list_options(request: TuningRequest) -> list[list[str]]:
    """List the options that make a request, each as the words to be typed."""
    changed = request.workload.model_dump(exclude_defaults=True, exclude={"dataset", "is_loader", "working_dir"})
    changed |= request.model_dump(exclude_defaults=True, exclude={"workload"})
    options = [words for name, value in changed.items() for words in _write_option(name, value)]
    return [["--loader" if request.workload.is_loader else "--dataset", request.workload.dataset], *options]


def _write_option(name: str, value: Any) -> list[list[str]]:
    """Write one option; a table becomes an option for each of its entries."""
    if name == "resume":
        return [["--resume" if value else "--no-resume"]]
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    return [[flag, text] for text in _list_texts(name, value)]


def _list_texts(name: str, value: Any) -> list[str]:
    if name == "knobs":
        return [f"{key}={_write_choices(choices)}" for key, choices in value.items()]
    if isinstance(value, Mapping):
        return [f"{key}={_write_part(part)}" for key, part in value.items()]
    if isinstance(value, tuple):
        return [",".join(str(part) for part in value)]
    return [write_duration(value) if name.endswith("_seconds") else str(value)]


def _write_choices(choices: Sequence[Any]) -> str:
    """Write choices as the command line reads them: a list, or JSON where a word would be taken for something else."""
    if any(isinstance(choice, str) and set(choice) & set(",:[") for choice in choices):
        return json.dumps(list(choices))
    return ",".join(map(_write_part, choices))


def _write_part(value: Any) -> str:
    """Write a value as the command line reads it: a range, a bare word, or JSON."""
    if isinstance(value, tuple):
        return ":".join(str(part) for part in value)
    return value if isinstance(value, str) and not _is_json(value) else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def write_duration(seconds: float) -> str:
    """Write a duration so that reading it gives the same number, in the largest unit that makes it a whole one."""
    for unit in ("h", "m", "s", "ms", "us"):
        count = round(seconds / SECOND_UNITS[unit])
        if 0 < count < MAX_COUNT_OF_UNIT and parse_seconds(f"{count}{unit}") == seconds:
            return f"{count}{unit}"
    return f"{Decimal(repr(seconds)):f}s"  # every digit, and no exponent
