"""The options that stand in pyproject.toml, under [tool.dltune]."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

PROJECT_FILE: Final = "pyproject.toml"


def read_project_options(folder: Path) -> dict[str, Any]:
    """Read them from the nearest pyproject.toml, upwards of a folder; names get underscores."""
    for place in (folder, *folder.parents):
        path = place / PROJECT_FILE
        if os.path.isfile(path):  # noqa: PTH113  # false, too, where a parent may not be looked into
            return {name.replace("-", "_"): value for name, value in _read_table(path).items()}
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
    """Give options the names of a command's parameters, and write tables as the command line would give them."""
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
    is_written_out = option == "range" or (option == "knob" and isinstance(value, str))  # as in "64:4096"
    return f"{key}={value if is_written_out else json.dumps(value)}"
