"""`dltune export`: how is a profile said to another library?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from autotune.cli.epilog import READS_A_FILE, epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import refuse_tuned_file, write_or_print
from autotune.cli.params import FILE

if TYPE_CHECKING:
    from autotune.profiles.targets import Target

# as in profiles.targets, which brings pydantic along, and help costs click alone
TARGETS: Final = ("kwargs", "statefuldataloader", "hf", "accelerate", "lightning", "timm", "yaml", "json", "env")


@click.command(
    epilog=epilog(
        "dltune export --to kwargs",
        "dltune export --to hf -o loader.yaml",
        "dltune export tuned/dltune.json --to env --profile h100x1-12c-64g-a41f -o loader.env --force",
        "python train.py $(dltune export --to timm)",
        codes=READS_A_FILE,
    )
)
@FILE
@click.option("--to", type=click.Choice(TARGETS), required=True, help="What will read the export.")
@click.option(
    "--profile", metavar="NAME", help="Export this profile; else the only one, or that of a machine like this."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it there, not to stdout.")
@click.option("--force", is_flag=True, help="Replace the output; export in_order=False to statefuldataloader.")
def export(file: Path, to: Target, profile: str | None, output: Path | None, force: bool) -> None:
    """Write a profile in the words of another library.

    FILE is the tuned file, dltune.json if left out. The settings are exported as they were tuned, not fitted to the
    machine at hand. What the target cannot hold is said on stderr, and in the export where its format has comments.
    """
    from autotune.profiles.export import export as write_export
    from autotune.profiles.selection import select_profile

    with exit_on_error():
        made = write_export(select_profile(file, profile), to, force=force)
        refuse_tuned_file(output, file)
        write_or_print(made.text, output, force=force)
    for note in made.notes:
        click.echo(note, err=True)
