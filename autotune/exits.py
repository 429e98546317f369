"""How a command ends when it cannot go on: an error of ours becomes a sentence on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from autotune.errors import DltuneError, WorkloadError

INTERRUPTED: Final = 130


@contextmanager
def report_errors() -> Iterator[None]:
    """Print an error of ours as a sentence and exit with its code."""
    try:
        yield
    except WorkloadError as error:
        if error.details:
            click.echo(error.details.rstrip(), err=True)
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except DltuneError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("Interrupted before any configuration was measured; nothing was written.", err=True)
        sys.exit(INTERRUPTED)
