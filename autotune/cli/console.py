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
REPORT_MARKS: Final = (b"### dltune: ", b'content="dltune report"')
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


def name_in(file: str, workload_id: str) -> str | None:
    """Return the id of a profile's workload if the file has several workloads, so that commands must name one."""
    from autotune.profiles.store import read_profiles

    return workload_id if {one.workload_id for one in read_profiles(Path(file))} - {workload_id} else None


def write_or_print(text: str, output: str | None, *, force: bool, source: str | None = None) -> None:
    """Print a text, or write it to a file: never the source, and only with `force` over a file that is no report."""
    from autotune.profiles.store import write_atomically

    if output is None:
        print_result(text)
        return
    path = Path(output)
    if source is not None and path.resolve() == Path(source).resolve():
        raise OutputError(f"{path} is the tuned file itself. Pass another --output.")
    try:
        if path.exists() and not force and not any(mark in path.read_bytes() for mark in REPORT_MARKS):
            raise OutputError(f"{path} exists already. Pass --force to replace it.")
        write_atomically(path, text)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from None
    click.echo(f"Wrote {path}.", err=True)


@contextmanager
def exit_on_error(exit_code: int | None = None, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Print dltune's own errors as a sentence, and exit with `exit_code` or the error's; 130 after Ctrl-C."""
    try:
        yield
    except ResultNotSavedError as error:
        try:
            print_result(error.details)
        except OutputError:
            _print_error(error.details)
        _print_error(f"Error: {error} The profile is printed instead.")
        sys.exit(error.exit_code)
    except DltuneError as error:
        _print_error(f"{error.details.rstrip()}\nError: {error}".lstrip("\n"))
        sys.exit(error.exit_code if exit_code is None else exit_code)
    except KeyboardInterrupt:
        _print_error(interrupted)
        sys.exit(INTERRUPTED)


def _print_error(text: str) -> None:
    click.echo(make_printable(text), err=True)
