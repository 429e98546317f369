"""`dltune init`: the factory that a training script does not have yet."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error


@click.command(
    epilog=epilog(
        "dltune init train.py",
        "dltune init train.py --line 120",
        "dltune init scripts/train.py -o loaders.py --force",
        codes="0 done; 1 the output cannot be written; 2 SCRIPT cannot be read, makes no loader, or what it needs "
        "cannot be told",
    )
)
@click.argument("script", type=click.Path(path_type=Path))
@click.option(
    "--line", type=click.IntRange(1), metavar="N", help="Where the loader is made; if left out, the training's."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    show_default="dltune_workload.py beside the script",
    help="Where the factory is written.",
)
@click.option("--force", is_flag=True, help="Replace an output that is there already.")
def init(script: Path, line: int | None, output: Path | None, force: bool) -> None:
    """Write the factory of a loader that a script makes.

    SCRIPT is read, and never run. What the loader needs is copied or imported from it: imports, the dataset, its
    transforms. What only the command line of the script tells becomes an argument, with the script's own default.
    Where a name of the script reaches the loader already, no file is written: dltune SCRIPT:NAME tunes it.
    """
    from autotune.cli.scripts import ask_for_loader, write_workload
    from autotune.scripts.source import read_script

    with exit_on_error():
        found = read_script(script)
        write_workload(found, ask_for_loader(found, line), output, force=force)
