"""`dltune tune`: find the fastest settings, and save them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autotune.cli.console import INTERRUPTED, NOTHING_MEASURED, exit_on_error, name_in, print_result
from autotune.cli.options import HELP_ALL, OPTIONS, TUNES, TuneCommand, build_request, epilog
from autotune.errors import UsageError
from autotune.system.signals import defer_interrupts, raise_on_signals

if TYPE_CHECKING:
    from autotune.profiles.schema import TunedProfile
    from autotune.request import TuningRequest


@click.command(
    cls=TuneCommand,
    params=[
        click.Argument(["target"], required=False, metavar="[TARGET]"),
        *(option for group in OPTIONS.values() for option in group),
        HELP_ALL,
    ],
    context_settings={"auto_envvar_prefix": "DLTUNE", "show_default": True},
    epilog=epilog(
        "dltune train.py:make_loader --step train.py:make_step",
        "dltune --dataset data.images:make_dataset --arg root=/data --set in_order=true --batch-size 64",
        "dltune --dataset data.images:make_dataset --search num_workers=0:16 --step-time 35ms --timeout 10m",
        codes=TUNES,
        more="Every option is also read from an environment variable, such as DLTUNE_TRIALS=20.",
    ),
)
@click.pass_context
def tune(ctx: click.Context, /, **options: Any) -> None:
    """Tune a DataLoader on this machine.

    Profiles your dataset and training step, tries candidate settings in short trials, then validates the best ones
    against your current settings. Ctrl-C saves the best result so far; run the same command again to resume.

    TARGET is short for --dataset TARGET. MODULE:NAME is pkg.mod:name or file.py:name.
    """
    with exit_on_error(interrupted=NOTHING_MEASURED):
        if options["target"] is not None:
            _read_target(ctx, options)
        request = build_request(options)
        if options["dry_run"]:
            _print_plan(request, options)
        elif request.fresh or not _print_stored_result(request, options):
            run_and_print(request, options)


def _read_target(ctx: click.Context, options: dict[str, Any]) -> None:
    target = options["target"]
    if ":" not in target:
        form = f"{target}:NAME" if target.endswith(".py") else "MODULE:NAME"
        raise UsageError(
            f"Run dltune --dataset {form} with NAME, a module-level function that returns your Dataset or DataLoader."
        )
    if ParameterSource.COMMANDLINE in map(ctx.get_parameter_source, ("dataset", "loader")):
        raise UsageError(f"Pass either {target} or --dataset or --loader.")
    options |= {"dataset": target, "loader": None}


def _print_plan(request: TuningRequest, options: dict[str, Any]) -> None:
    """Profile the workload and print the first trials."""
    from autotune.cli.display import RunDisplay
    from autotune.preparation import plan_only
    from autotune.settings import format_arguments

    with raise_on_signals(), RunDisplay(verbose=options["verbose"], quiet=options["quiet"]) as progress:
        plan = plan_only(request, progress=progress)
    rows = {format_arguments(one, with_batch_size=True): plan.predict(one) for one in plan.initial_configs()}
    lines = [f"{arguments}  (predicted {rate:,.0f} samples/s)" for arguments, rate in rows.items()]
    print_result("\n  ".join([f"Up to {request.trials} trials, these first:", *lines]))


def _print_stored_result(request: TuningRequest, options: dict[str, Any]) -> bool:
    """Print the stored result of the same request if a short measurement confirms it; return whether it does."""
    if not Path(request.output).exists():  # importing what follows takes a second
        return False
    from autotune.checking import verify
    from autotune.cli.display import RunDisplay
    from autotune.preparation import find_stored
    from autotune.report.render import render_verified
    from autotune.system.machine import read_machine

    if (stored := find_stored(request, read_machine(), validated=True)) is None:
        return False
    with raise_on_signals(), RunDisplay(quiet=options["quiet"]) as progress:
        found = verify(request, stored, progress)
        if not found.is_valid or found.remeasured is None:
            progress.show_warning(f"the stored result is out of date, tuning again: {'; '.join(found.reasons)}")
            return False
    rate, name = found.remeasured.samples_per_second, name_in(request.output, stored.workload_id)
    text = render_verified(stored, request.output, rate, width=_read_width(), name=name)
    print_result(stored.model_dump_json(indent=2) if options["json"] else text)
    return True


def run_and_print(request: TuningRequest, options: dict[str, Any], earlier: TunedProfile | None = None) -> None:
    """Tune, starting from an earlier profile if there is one, and print the result."""
    from autotune.runner.launcher import Launcher

    with raise_on_signals():
        with Launcher(
            request.workload.nproc_per_node
        ) as launcher:  # it imports torch while this process imports Optuna
            from autotune.cli.display import RunDisplay
            from autotune.report.render import render_summary
            from autotune.tuning import tune

            with RunDisplay(verbose=options["verbose"], quiet=options["quiet"]) as progress:
                found = tune(request, progress=progress, earlier=earlier, launcher=launcher)
                progress.show_result(found.profile)
        with defer_interrupts():
            name, width = name_in(request.output, found.profile.workload_id), _read_width()
            text = render_summary(found.profile, request.output, width=width, interrupted=found.interrupted, name=name)
            document = found.profile.model_dump_json(indent=2)
            print_result(document if options["json"] else text, f" The result is in {request.output}.")
    if found.interrupted:
        sys.exit(INTERRUPTED)


def _read_width() -> int:
    """Return the columns of the terminal if stdout is one, else 100."""
    return shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
