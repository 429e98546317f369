"""Turns what the user typed, exported or wrote into pyproject.toml into a `TuningRequest`."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from autotune.errors import UsageError
from autotune.units import parse_budget, parse_seconds

if TYPE_CHECKING:
    from autotune.request import TuningRequest

PROJECT_FILE: Final = "pyproject.toml"
MAX_SHOWN: Final = 80  # characters of a value that is refused
_SAME_NAMES: Final = (
    *("trials", "epochs", "seed", "sampler", "max_memory", "max_shm", "max_gpu_memory", "max_workers"),
    *("isolation", "output", "profile", "storage", "study_name", "resume"),
)  # options that are called in TuningRequest as on the command line


if TYPE_CHECKING:
    Seconds = click.ParamType[float]
    Text = click.ParamType[str]
    Sizes = click.ParamType[tuple[int, ...]]
    Pair = click.ParamType[tuple[str, Any]]
    Bounds = click.ParamType[tuple[str, tuple[int, int]]]
else:  # generic since click 8.4 only, and 8.2 will do
    Seconds = Text = Sizes = Pair = Bounds = click.ParamType


class Duration(Seconds):
    """A length of time such as `35ms`, `3s` or `10m`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        try:
            return parse_seconds(value)
        except (ValueError, AttributeError, TypeError) as error:
            self.fail(str(error), param, ctx)


class Budget(Text):
    """An amount of memory: a share such as `80%`, or an amount such as `24GiB`."""

    name = "budget"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check it; the share is taken of the machine later."""
        text = str(value).strip()
        try:
            parse_budget(text, whole=1 << 50)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return text


class BatchSizes(Sizes):
    """One batch size that is pinned, or a list to choose from: `64` or `32,64,128`."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Read it."""
        parts = value if isinstance(value, list | tuple) else str(value).split(",")
        try:
            sizes = tuple(int(part) for part in parts)
        except ValueError:
            self.fail(f"{value!r} is not a number or a list such as 32,64,128", param, ctx)
        if not sizes or min(sizes) < 1:
            self.fail(f"{value!r}: a batch holds at least one sample", param, ctx)
        return sizes


class Assignment(Pair):
    """`KEY=VALUE`, where the value is JSON or a bare word."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Read it."""
        if isinstance(value, tuple):
            return cast("tuple[str, Any]", value)
        key, separator, text = str(value).partition("=")
        if not separator or not key.strip():
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        try:
            return key.strip(), read_value(text)
        except RecursionError:
            self.fail(f"{_shorten(value)} is nested too deeply for JSON", param, ctx)


class Range(Bounds):
    """`KNOB=LOW:HIGH`, both ends included."""

    name = "knob=low:high"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, int]]:
        """Read it."""
        if isinstance(value, tuple):
            return cast("tuple[str, tuple[int, int]]", value)
        key, _, text = str(value).partition("=")
        low, _, high = text.partition(":")
        try:
            bounds = int(low), int(high)
        except ValueError:
            self.fail(f"{_shorten(value)} is not of the form num_workers=0:16", param, ctx)
        if not 0 <= bounds[0] <= bounds[1]:
            self.fail(f"{value!r}: the lower end is above the upper one or below 0, give num_workers=0:16", param, ctx)
        return key.strip(), bounds


def read_value(text: str) -> Any:
    """Read a value given on the command line: JSON where it is JSON, else the text itself.

    Args:
        text: What was given.

    Returns:
        The value.

    Raises:
        RecursionError: It is JSON that is nested more deeply than can be read.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shorten(value: object) -> str:
    """Write what was given so that a line can hold it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def read_project_options(folder: Path) -> dict[str, Any]:
    """Read `[tool.dltune]` of the nearest pyproject.toml.

    Args:
        folder: Where to start looking, upwards.

    Returns:
        Option names (with underscores) and values; empty when there is none.

    Raises:
        click.ClickException: The file cannot be read, is not valid TOML, or holds something else in that place.
    """
    for place in (folder, *folder.parents):
        path = place / PROJECT_FILE
        if os.path.isfile(path):  # noqa: PTH113  # false, too, where a parent may not be looked into
            options = _read_table(path)
            return {name.replace("-", "_"): value for name, value in options.items()}
    return {}


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from None
    options = table.get("dltune", {}) if isinstance(table, Mapping) else table
    if not isinstance(options, Mapping):
        raise click.UsageError(f"{path}: [tool.dltune] must be a table of options")
    return options


def name_parameters(options: Mapping[str, Any], command: click.Command) -> dict[str, Any]:
    """Turn option names as the user writes them into the parameter names that click knows.

    Args:
        options: Values by option name, without dashes in front and with underscores.
        command: The command they are for.

    Returns:
        Values by parameter name, tables written as the command line would give them.

    Raises:
        click.UsageError: There is no such option.
    """
    known = {flag.lstrip("-").replace("-", "_"): name for name, flag in _list_flags(command)}
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"[tool.dltune] in {PROJECT_FILE}: no such option {name!r}.{hint}")
    return {known[name]: _flatten(name, value) for name, value in options.items()}


def _list_flags(command: click.Command) -> list[tuple[str, str]]:
    return [(param.name, flag) for param in command.params if param.name for flag in param.opts if len(flag) > 2]


def _flatten(name: str, value: Any) -> Any:
    """Write a table such as `fix = {in_order = true}` as a list of assignments."""
    if not isinstance(value, Mapping):
        return value
    return [_write_assignment(name, key, part) for key, part in value.items()]


def _write_assignment(option: str, key: str, value: Any) -> str:
    if option == "range" and isinstance(value, list):
        return f"{key}={':'.join(str(part) for part in value)}"
    return f"{key}={value if option == 'range' else json.dumps(value)}"


def build_request(options: dict[str, Any]) -> TuningRequest:
    """Make a request of the command's options.

    Args:
        options: Values by parameter name, as click gives them.

    Returns:
        The validated request.

    Raises:
        UsageError: An option is missing, or a combination makes no sense.
    """
    from pydantic import ValidationError

    from autotune.request import TuningRequest, WorkloadRequest

    if not options["dataset"]:
        raise UsageError("--dataset PKG.MOD:ATTR is missing: name the factory of your dataset.")
    try:
        workload = WorkloadRequest(
            dataset=options["dataset"],
            dataset_args=dict(options["dataset_args"]),
            collate=options["collate"],
            step=options["step"],
            step_seconds=options["step_time"],
            device=options["device"],
        )
        same = {name: options[name] for name in _SAME_NAMES}
        return TuningRequest(
            workload=workload,
            batch_sizes=options["batch_size"],
            fixed=dict(options["fix"]),
            ranges=dict(options["ranges"]),
            timeout_seconds=options["timeout"],
            trial_seconds=options["trial_time"],
            stall_seconds=options["stall_time"],
            **same,
        )
    except ValidationError as error:
        raise UsageError(_explain_validation(error)) from None


def _explain_validation(error: Any) -> str:
    problem = error.errors(include_url=False)[0]
    place = [str(part) for part in problem["loc"]]
    if place and place[0] in ("fixed", "ranges"):
        from autotune.knobs import KNOBS

        option = "--fix" if place[0] == "fixed" else "--range"
        known = len(place) > 1 and place[1] in KNOBS and place[-1] != "[key]"
        hint = "the value does not suit it" if known else f"the knobs are {', '.join(KNOBS)}"
        return f"{option} {place[1]}: {hint}." if len(place) > 1 else f"{option}: {hint}."
    return f"{' '.join(place)}: {problem['msg'].removeprefix('Value error, ')}.".removeprefix(": ")
