"""The command line: the list of its commands, and `tune` where none is named.

Importing it costs click and nothing else; what a command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from autotune.cli.check import check
from autotune.cli.compare import compare
from autotune.cli.completion import completion
from autotune.cli.doctor import doctor
from autotune.cli.epilog import epilog
from autotune.cli.export import export
from autotune.cli.init import init
from autotune.cli.merge import merge
from autotune.cli.project_file import name_parameters, read_project_options
from autotune.cli.report import report
from autotune.cli.retune import retune
from autotune.cli.schema import schema
from autotune.cli.scripts import is_script
from autotune.cli.show import show
from autotune.cli.tune import tune
from autotune.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Final[tuple[click.Command, ...]] = (
    *(tune, init, retune, show, check, compare),
    *(export, merge, report, doctor, completion, schema),
)
_EPILOG: Final = epilog(
    "dltune train.py                        # finds the loader, and tunes it or says what to run",
    "dltune --dataset data.images:make_dataset --step train:make_step --batch-size 64",
    "dltune show",
    "dltune check || dltune retune          # in a job, before it trains",
    "dltune export --to hf -o loader.yaml",
    "dltune report",
    "dltune doctor --data /data/images",
    more="\b\nIn training code:\n  loader = autotune.load('dltune.json').make_loader(dataset, shuffle=True)",
)


class TuneByDefault(click.Group):
    """A group whose `tune` command may be left out when the first argument is an option or a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `tune` in front of options that are not the group's own, and of scripts."""
        is_option = bool(args) and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")
        if is_option or (args and is_script(args[0])):
            args = ["tune", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """List commands and the group's own options, and those of `tune`."""
        implied = tune.shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        found = super().shell_complete(ctx, incomplete)
        return [*found, *(item for item in implied if item.value not in {own.value for own in found})]


@click.group(
    cls=TuneByDefault,
    commands=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="dltune", prog_name="dltune")
def cli() -> None:
    """Find the DataLoader settings that feed your training step fastest on this machine.

    Short trials of your dataset and your step run in child processes, under budgets for memory, /dev/shm and open
    files. The best settings are written to dltune.json, for training code to load.

    `tune` is implied when the first argument is an option or a script. `dltune COMMAND --help` says more of each
    command.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: What to run; None takes the process's own arguments.
    """
    try:
        defaults = {"tune": name_parameters(read_project_options(Path.cwd()), tune)}
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except FileNotFoundError:
        click.echo("Error: the current folder is gone; go to one that is there.", err=True)
        sys.exit(UsageError.exit_code)
    cli.main(args=arguments, prog_name="dltune", default_map=defaults)


if __name__ == "__main__":
    main()
