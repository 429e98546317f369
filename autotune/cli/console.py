"""Output of the command line: results on stdout, errors on stderr."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from autotune.errors import DltuneError, OutputError, ResultNotSavedError

INTERRUPTED: Final = 130
NOTHING_MEASURED: Final = "Interrupted before any configuration was measured; no result was saved."


def print_result(text: str, saved: str = "") -> None:
    """Print a result on stdout; if that fails, raise OutputError with where else it was `saved`."""
    try:
        click.echo(make_printable(text, sys.stdout.encoding).removesuffix("\n"))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader has closed the pipe, as `head` does; click exits quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest at exit would fail again
        raise OutputError(f"stdout cannot be written: {error.strerror}.{saved}") from None


def make_printable(text: str, encoding: str | None = None) -> str:
    """Escape control characters as JSON does, so that no printed file or message controls the terminal."""
    shown = "".join(mark if mark.isprintable() or mark in "\n\t" else _escape(mark) for mark in text)
    try:
        shown.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(mark if mark.isascii() else _escape(mark) for mark in shown)
    return shown


def _escape(mark: str) -> str:
    return f"\\u{ord(mark):04x}" if ord(mark) < 2**16 else json.dumps(mark).strip('"')


def write_or_print(text: str, output: Path | None, *, force: bool) -> None:
    """Print a text, or write it to a file; an existing file is only replaced with `force`."""
    from autotune.profiles.store import write_atomically

    if output is None:
        print_result(text)
        return
    if output.exists() and not force:
        raise OutputError(f"{output} exists already. Pass --force to replace it.")
    try:
        write_atomically(output, text)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {output}.", err=True)


@contextmanager
def exit_on_error(exit_code: int | None = None, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Print dltune's own errors as a sentence, and exit with `exit_code` or the error's; 130 after Ctrl-C."""
    try:
        yield
    except ResultNotSavedError as error:
        _print_error(f"Error: {error} The profile is printed on {_print_unsaved(error)} instead.")
        sys.exit(error.exit_code)
    except DltuneError as error:
        if error.details:
            _print_error(error.details.rstrip())
        _print_error(f"Error: {error}")
        sys.exit(error.exit_code if exit_code is None else exit_code)
    except KeyboardInterrupt:
        _print_error(interrupted)
        sys.exit(INTERRUPTED)


def _print_unsaved(error: ResultNotSavedError) -> str:
    try:
        print_result(error.document)
    except OutputError:
        _print_error(error.document)
        return "stderr"
    return "stdout"


def _print_error(text: str) -> None:
    click.echo(make_printable(text), err=True)
