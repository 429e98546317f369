"""`dltune show`: what does a tuned file hold?"""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result
from autotune.cli.params import FILE
from autotune.errors import UsageError


@click.command(
    epilog=epilog(
        "dltune show",
        "dltune show tuned/dltune.json --profile h100x1-12c-64g-a41f",
        "dltune show --json",
        codes="0 done; 2 FILE cannot be read, or holds no such profile",
    )
)
@FILE
@click.option("--profile", metavar="NAME", help="Show only this profile.")
@click.option("--json", "as_json", is_flag=True, help="Print the profiles as JSON.")
def show(file: Path, profile: str | None, as_json: bool) -> None:
    """Show the profiles of a tuned file.

    FILE is dltune.json if left out. Of each profile: machine and workload, the settings, what they reach and with what
    certainty, and what was learned.
    """
    from autotune.profiles.file import read_file
    from autotune.profiles.saving import format_file
    from autotune.profiles.schema import SCHEMA_VERSION, TunedFile
    from autotune.report.text import describe_profile

    with exit_on_error():
        found = read_file(file)
        chosen = tuple(entry for entry in found.profiles if profile in (None, entry.name))
        if not chosen:
            names = ", ".join(entry.name for entry in found.profiles) or "none"
            raise UsageError(f"{file} has no profile {profile or ''}; it holds: {names}.")
        if as_json:
            print_result(format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=chosen)))
        else:
            print_result("\n\n".join(describe_profile(entry) for entry in chosen))
