"""The command line: its commands, and `tune` if none is given. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any

import click

from autotune.cli.doctor import doctor
from autotune.cli.options import epilog
from autotune.cli.run import run
from autotune.cli.show import export, merge, report, show
from autotune.cli.tune import check, retune, tune
from autotune.errors import UsageError
from autotune.system.signals import SIGNALS


class TuneByDefault(click.Group):
    """A group whose `tune` command is implied if the first argument is an option or names code to tune."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `tune` before its options, FILE.py, MODULE:NAME, and any name with a dot, for its error."""
        first = args[0] if args else ""
        is_option = first.startswith("-") and first not in ("--help", "-h", "--version")
        if is_option or "." in first or ":" in first:
            args = ["tune", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the options of `tune`, too."""
        return [*super().shell_complete(ctx, incomplete), *tune.shell_complete(ctx, incomplete)]


@click.group(
    cls=TuneByDefault,
    commands=(tune, run, check, retune, show, report, export, merge, doctor),
    epilog=epilog(
        "dltune --dataset data.images:make_dataset --step train:make_step --batch-size 64",
        "dltune train.py:make_loader",
        "dltune check || dltune retune          # in a job, before it trains",
        "dltune export --to hf -o loader.yaml",
        more="\b\nIn training code:\n  import autotune\n"
        "  loader = autotune.load('dltune.json').make_loader(dataset, shuffle=True)",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="dltune", prog_name="dltune")
def cli() -> None:
    """Find the fastest DataLoader settings for your dataset, training step and machine.

    dltune measures your dataset and training step in short trials in child processes, within limits for memory,
    /dev/shm and open files, and saves the best settings to dltune.json, from which training code loads them.

    `dltune TARGET` is short for `dltune tune TARGET`. Run `dltune COMMAND --help` for details.
    """


def main() -> None:
    """Run the command line with the arguments of the process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `__main__` has set it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # a standard stream is closed: no socket takes its place
        pass
    os.close(descriptor)
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        click.echo("Error: the current folder does not exist any more. Change to another one.", err=True)
        sys.exit(UsageError.exit_code)
    if sys.argv[1:2] == ["run"]:  # warnings and signals are the script's
        cli.main(prog_name="dltune")
    if not any(one.startswith("ignore") for one in sys.warnoptions):  # a warning as an error would be a traceback
        warnings.simplefilter("always", UserWarning)
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    try:
        cli.main(prog_name="dltune")
    finally:
        for number in SIGNALS:  # an interrupt while Python exits would change the exit code
            signal.signal(number, signal.SIG_IGN)
