"""Where a result goes: to stdout, or into a file that it may replace."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import click

from autotune.errors import OutputError


def print_result(text: str, elsewhere: str = "") -> None:
    """Print a result on stdout; raises OutputError, which says `elsewhere`, where that cannot be written."""
    shown = make_printable(text, sys.stdout.encoding)
    try:
        click.echo(shown.removesuffix("\n"))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # whoever read it has seen enough, as `head` does; click ends quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it would fail again at the end
        raise OutputError(f"stdout cannot be written: {error.strerror}.{elsewhere}") from None


def make_printable(text: str, encoding: str | None = None) -> str:
    """Write control characters out, as JSON does, so that no file or message that is shown commands the terminal."""
    shown = "".join(mark if mark.isprintable() or mark in "\n\t" else _write_out(mark) for mark in text)
    try:
        shown.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(mark if mark.isascii() else _write_out(mark) for mark in shown)
    return shown


def _write_out(mark: str) -> str:
    return f"\\u{ord(mark):04x}" if ord(mark) < 2**16 else json.dumps(mark).strip('"')


def refuse_tuned_file(output: Path | None, file: Path) -> None:
    """Raise OutputError where an output would replace the tuned file that it is made of."""
    if output is not None and output.resolve() == file.resolve():
        raise OutputError(f"{output} is the tuned file itself. Give another --output.")


def write_or_print(text: str, output: Path | None, *, force: bool) -> None:
    """Print a text, or write it to a file; one that is there already is replaced by force only."""
    from autotune.profiles.atomic_write import write_atomically

    if output is None:
        print_result(text)
        return
    if output.exists() and not force:
        raise OutputError(f"{output} is there already. Give --force to replace it.")
    try:
        write_atomically(output, text)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {output}.", err=True)
