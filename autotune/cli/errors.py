"""How a command ends in an error: a sentence on stderr, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from autotune.cli.output import make_printable, print_result
from autotune.errors import DltuneError, OutputError, ResultNotSavedError

INTERRUPTED: Final = 130
NOTHING_MEASURED: Final = "Interrupted before any configuration was measured; no result was written."


@contextmanager
def exit_on_error(exit_code: int | None = None, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Print an error of ours as a sentence and exit with `exit_code`, or else with the error's own.

    After Ctrl-C it says what `interrupted` holds.
    """
    try:
        yield
    except ResultNotSavedError as error:
        print_unsaved_profile(error)
        sys.exit(error.exit_code)
    except DltuneError as error:
        if error.details:
            _print_error(error.details.rstrip())
        _print_error(f"Error: {error}")
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
        _print_error(error.document)
        place = "stderr"
    _print_error(f"Error: {error} The profile was printed on {place} instead; put it there once it can be written.")


def _print_error(text: str) -> None:
    click.echo(make_printable(text), err=True)
