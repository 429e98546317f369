"""`dltune merge`: one file of what was tuned on several machines."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import make_printable, write_or_print


@click.command(
    epilog=epilog(
        "dltune merge a100.json h100.json cpu.json -o dltune.json",
        "dltune merge nodes/*.json -o dltune.json --force",
        codes="0 done; 1 the output cannot be written; 2 a file cannot be read",
    )
)
@click.argument("files", metavar="A B...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write it there, not to stdout.")
@click.option("--force", is_flag=True, help="Replace an output that is there already.")
def merge(files: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Put the profiles of several tuned files into one.

    Of results for equal machines and the same workload the newest is taken; a note gives both, and says whether they
    differ beyond noise. On each machine autotune.load takes the profile that fits it.
    """
    from autotune.profiles.file import read_file
    from autotune.profiles.merging import Source, merge_profiles
    from autotune.profiles.saving import format_file, refuse_what_could_not_be_read
    from autotune.profiles.schema import SCHEMA_VERSION, TunedFile

    with exit_on_error():
        found = merge_profiles([Source(str(file), read_file(file).profiles) for file in files])
        for remark in found.remarks:
            click.echo(make_printable(f"note     {remark}"), err=True)
        text = format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=found.profiles))
        if output is not None:
            refuse_what_could_not_be_read(output, text)
        write_or_print(text, output, force=force)
