"""How a command ends: its result on stdout, or an error of ours as a sentence on stderr and an exit code."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from autotune.errors import DltuneError, OutputError, ResultNotSavedError

INTERRUPTED: Final = 130
NOTHING_MEASURED: Final = "Interrupted before any configuration was measured; no result was written."


@contextmanager
def exit_on_error(exit_code: int | None = None, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Print an error of ours as a sentence and exit with its code.

    Args:
        exit_code: What to exit with instead of the error's own code.
        interrupted: What to say after Ctrl-C.
    """
    try:
        yield
    except ResultNotSavedError as error:
        print_unsaved_profile(error)
        sys.exit(error.exit_code)
    except DltuneError as error:
        if error.details:
            click.echo(_make_printable(error.details.rstrip()), err=True)
        click.echo(_make_printable(f"Error: {error}"), err=True)
        sys.exit(error.exit_code if exit_code is None else exit_code)
    except KeyboardInterrupt:
        click.echo(interrupted, err=True)
        sys.exit(INTERRUPTED)


def print_unsaved_profile(error: ResultNotSavedError) -> None:
    """Print the profile that could not be written, on stderr where stdout fails as well."""
    try:
        print_result(error.document)
        place = "stdout"
    except OutputError:
        click.echo(_make_printable(error.document), err=True)
        place = "stderr"
    advice = f"The profile was printed on {place} instead; put it there once it can be written."
    click.echo(_make_printable(f"Error: {error} {advice}"), err=True)


def print_result(text: str, elsewhere: str = "") -> None:
    """Print a result on stdout.

    Args:
        text: The result.
        elsewhere: Says where it can be found when stdout fails.

    Raises:
        OutputError: stdout cannot be written.
    """
    shown = _make_printable(text, sys.stdout.encoding)
    try:
        click.echo(shown.removesuffix("\n"))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # whoever read it has seen enough, as `head` does; click ends quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left of it would fail again at the end
        raise OutputError(f"stdout cannot be written: {error.strerror}.{elsewhere}") from None


def _make_printable(text: str, encoding: str | None = None) -> str:
    """Write control characters out, as JSON does, so that no file or message that is shown commands the terminal."""
    shown = "".join(mark if mark.isprintable() or mark in "\n\t" else _write_out(mark) for mark in text)
    try:
        shown.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(mark if mark.isascii() else _write_out(mark) for mark in shown)
    return shown


def _write_out(mark: str) -> str:
    return f"\\u{ord(mark):04x}" if ord(mark) < 2**16 else json.dumps(mark).strip('"')
