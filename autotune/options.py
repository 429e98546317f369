"""Turns what the user typed, exported or wrote into pyproject.toml into a `TuningRequest`."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import click

from autotune.units import parse_budget, parse_seconds

PROJECT_FILE: Final = "pyproject.toml"


class Duration(click.ParamType[float]):
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


class Budget(click.ParamType[str]):
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


class BatchSizes(click.ParamType[tuple[int, ...]]):
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


class Assignment(click.ParamType[tuple[str, Any]]):
    """`KEY=VALUE`, where the value is JSON or a bare word."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Read it."""
        if isinstance(value, tuple):
            return cast("tuple[str, Any]", value)
        key, separator, text = str(value).partition("=")
        if not separator or not key.strip():
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key.strip(), read_value(text)


class Range(click.ParamType[tuple[str, tuple[int, int]]]):
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
        if not (low.strip().isdigit() and high.strip().isdigit()):
            self.fail(f"{value!r} is not of the form num_workers=0:16", param, ctx)
        if int(low) > int(high):
            self.fail(f"{value!r}: the lower end is above the upper one, give num_workers=0:16", param, ctx)
        return key.strip(), (int(low), int(high))


def read_value(text: str) -> Any:
    """Read a value given on the command line: JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_project_options(folder: Path) -> dict[str, Any]:
    """Read `[tool.dltune]` of the nearest pyproject.toml.

    Args:
        folder: Where to start looking, upwards.

    Returns:
        Option names (with underscores) and values; empty when there is none.

    Raises:
        click.ClickException: The file is not valid TOML.
    """
    for place in (folder, *folder.parents):
        path = place / PROJECT_FILE
        if path.is_file():
            try:
                table = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise click.UsageError(f"{path} is not valid TOML: {error}") from None
            options = table.get("tool", {}).get("dltune", {})
            return {name.replace("-", "_"): value for name, value in options.items()}
    return {}


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
