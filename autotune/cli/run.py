"""`dltune run`: train with a script whose loaders are tuned meanwhile."""

from __future__ import annotations

from typing import Any

import click

from autotune.cli.console import exit_on_error
from autotune.cli.options import epilog, option


@click.command(
    params=[
        click.Argument(["script"], metavar="SCRIPT"),
        click.Argument(["arguments"], metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED),
        option("-m --module", "SCRIPT is the name of a module, as in python -m."),
        option("-o --output FILE", "File for the result.", "dltune.json"),
        option(
            "--max-workers N",
            "Maximum of num_workers. Default: 64, or 2 per CPU if that is more or workers import the script again.",
        ),
        option("--max-memory SIZE", "Host memory for added workers: a percentage of what is free, or a size.", "80%"),
        option("-q --quiet", "Print nothing but the output of the script."),
    ],
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "show_default": True},
    epilog=epilog(
        "dltune run train.py --epochs 3",
        "dltune run -m package.train --epochs 3",
        "torchrun --nproc-per-node 8 -m autotune run train.py",
        codes="0 done; others are those of the script; 2 there is no such file or module",
    ),
)
def run(script: str, arguments: tuple[str, ...], module: bool, output: str, quiet: bool, **limits: Any) -> None:
    """Run a training script unchanged, and tune its DataLoaders while it trains.

    Only num_workers and prefetch_factor change, between two batches. Batches arrive in the order of the sampler, and
    errors at the same batch. The result of each loader is printed at the end and saved. DLTUNE_AUTOPILOT=never switches
    tuning off.
    """
    with exit_on_error():
        from autotune.online.autopilot import Options
        from autotune.online.script import run_script

        run_script(script, arguments, Options(output, quiet=quiet, **limits), is_module=module)
