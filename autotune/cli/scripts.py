"""What `dltune train.py` and `dltune init train.py` make of a script: a name to tune, or a file with a factory."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from autotune.cli.output import make_printable, print_result, write_or_print
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.scripts.finding import LoaderCall
    from autotune.scripts.reaching import Reached
    from autotune.scripts.source import Script
    from autotune.scripts.writing import Factory

WORKLOAD_FILE: Final = "dltune_workload.py"
NOTHING_TUNED: Final = UsageError.exit_code


def is_script(word: str) -> bool:
    """Tell whether an argument names a script, or something in one."""
    return word.endswith((".py", ".ipynb")) or ".py:" in word


def choose_name(file: str, line: int | None, given: Collection[str]) -> tuple[str, str | None]:
    """Give the import string of what is to be tuned of a script, and which of several it is that this gives.

    Where a factory must be written first, it is, and the process ends after it has said what to run.

    Args:
        file: The script, or an import string that names something in it.
        line: Where the loader is made; None where that need not be said.
        given: Names of the arguments that the factory will be given.

    Raises:
        UsageError: There is no loader, or there are several, or what it needs cannot be told.
    """
    from autotune.import_strings import split_import_string
    from autotune.scripts.reaching import reach
    from autotune.scripts.source import read_script

    if split_import_string(file) is not None:
        return file, None
    script = read_script(Path(file))
    call = ask_for_loader(script, line)
    reached = reach(script, call)
    if reached is None:
        _write_factory(script, call, script.path.with_name(WORKLOAD_FILE), force=False)
        sys.exit(NOTHING_TUNED)
    if missing := [name for name in reached.missing if name not in given]:
        raise UsageError(f"{file}, {call.describe()}: {', '.join(missing)} must be given: {_call(file, reached)}")
    click.echo(make_printable(f"Tuning {file}:{reached.name}, the loader of {call.describe()}."), err=True)
    return f"{file}:{reached.name}", reached.split


def ask_for_loader(script: Script, line: int | None) -> LoaderCall:
    """Choose the loader of a script, and ask where there are several and somebody who can answer."""
    from autotune.scripts.finding import choose_loader, describe_all, find_loaders

    call = choose_loader(script, line)
    if call is None:
        found = find_loaders(script)
        if not sys.stdin.isatty() or not sys.stderr.isatty():
            raise UsageError(f"{script.path} makes several DataLoaders: {describe_all(found)}. Choose one with --line.")
        lines = sorted({one.line for one in found})
        click.echo(make_printable(f"{script.path} makes several DataLoaders: {describe_all(found)}."), err=True)
        chosen = click.prompt("Line of the one to tune", type=click.Choice([str(one) for one in lines]), err=True)
        call = choose_loader(script, int(chosen))
    assert call is not None
    return call


def write_workload(script: Script, call: LoaderCall, output: Path | None, *, force: bool) -> None:
    """Write the factory of a loader, and say what to run; where a name reaches it, only the latter."""
    from autotune.scripts.reaching import reach

    reached = reach(script, call) if output is None else None
    if reached is not None:
        print_result(f"No file is needed for {call.describe()}: {_call(str(script.path), reached)}")
        return
    _write_factory(script, call, output or script.path.with_name(WORKLOAD_FILE), force=force)


def _write_factory(script: Script, call: LoaderCall, path: Path, *, force: bool) -> None:
    from autotune.scripts.slicing import slice_script
    from autotune.scripts.writing import write_factory

    factory = write_factory(slice_script(script, call))
    name = _name_module(path, factory)
    if path.exists() and not force and _read(path) != factory.text:
        raise UsageError(
            f"{path} is there already. Tune it (dltune --dataset {name}), write it anew (dltune init {script.path} "
            f"--force), or elsewhere (dltune init {script.path} -o FILE.py)."
        )
    write_or_print(factory.text, path, force=True)
    print_result(_describe(script, call, factory, name))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _describe(script: Script, call: LoaderCall, factory: Factory, name: str) -> str:
    """Say what was written, what it takes, and what to run."""
    lines = [f"It makes the loader of {script.path}, {call.describe()}. Read it, then run:"]
    words = ["dltune", "--dataset", name]
    for missing in factory.missing:
        words += ["--dataset-arg", f"{missing}=..."]
    if factory.makes_several:
        words += ["--split", "train"]
    lines += [f"  {' '.join(words)}"]
    if factory.missing:
        lines += [f"Without a default in the script: {', '.join(factory.missing)}. Put a value in place of each `...`."]
    if rest := [f"{one.name}={one.default}" for one in factory.parameters if one.default is not None]:
        lines += [f"By default, as in the script: {', '.join(rest)}. Another value: --dataset-arg NAME=VALUE."]
    return "\n".join([*lines, *factory.notes])


def _call(file: str, reached: Reached) -> str:
    given = [f" --dataset-arg {name}=..." for name in reached.missing]
    split = "" if reached.split is None else f" --split {reached.split}"
    return f"dltune {shlex.quote(f'{file}:{reached.name}')}{''.join(given)}{split}"


def _name_module(path: Path, factory: Factory) -> str:
    """Name the factory as it is given to --dataset: by its module where that is found from here, else by its path."""
    from autotune.scripts.writing import FACTORY

    is_relative = "\nfrom ." in factory.text
    folder = path.resolve().parent
    parts = [path.stem]
    while is_relative and (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    is_found = folder == Path.cwd().resolve() and all(part.isidentifier() for part in parts)
    return f"{'.'.join(parts)}:{FACTORY}" if is_found else f"{os.path.relpath(path)}:{FACTORY}"
