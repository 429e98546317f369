"""`dltune tune`, `retune` and `check`: find the fastest settings, and keep them up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from autotune.cli.console import INTERRUPTED, NOTHING_MEASURED, RunDisplay, exit_on_error, print_error, print_result
from autotune.cli.options import FILE, OUTPUT, PROFILE, TUNE_PARAMS, TUNES, TuneCommand, build_request, epilog, option
from autotune.cli.show import name_profiles
from autotune.errors import UsageError
from autotune.system.signals import defer_interrupts, raise_on_signals
from autotune.units import format_rate

if TYPE_CHECKING:
    from autotune.checking import CheckResult
    from autotune.profiles.schema import TunedProfile
    from autotune.request import TuningRequest
    from autotune.tuning import TuningResult

ALTERNATIVES: Final = (("dataset", "loader"), ("loader", "dataset"), ("step", "step_time"), ("step_time", "step"))


@click.command(
    cls=TuneCommand,
    params=[*TUNE_PARAMS],
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
    against the settings of your DataLoader, or PyTorch's defaults. Ctrl-C saves the best result so far; run the same
    command again to resume.

    TARGET is short for --dataset TARGET. MODULE:NAME is pkg.mod:name or file.py:name.
    """
    with exit_on_error(interrupted=NOTHING_MEASURED):
        source = ctx.get_parameter_source
        for one, other in ALTERNATIVES:
            if source(one) is ParameterSource.COMMANDLINE and source(other) is ParameterSource.ENVIRONMENT:
                options[other] = None
        if (target := options["target"]) is not None:
            if target.endswith(".py"):
                function = "NAME, a module-level function that returns your Dataset or DataLoader"
                raise UsageError(f"Run dltune run {target}, or dltune --dataset {target}:NAME with {function}.")
            if target.isdecimal():
                raise UsageError(f"{target} is no TARGET: separate values by commas, as in --batch-size 16,{target}.")
            if ParameterSource.COMMANDLINE in map(source, ("dataset", "loader")):
                raise UsageError(f"Pass either {target} or --dataset or --loader.")
            options |= {"dataset": target, "loader": None}
        _run_and_print(build_request(options), options)


def _run_and_print(request: TuningRequest, options: dict[str, Any], earlier: TunedProfile | None = None) -> None:
    from autotune.runner.supervisor_client import SupervisorClient

    found: TuningResult | None = None
    try:
        with raise_on_signals():
            with SupervisorClient(request.workload) as supervisor:  # imports torch meanwhile
                from autotune.report.render import render_summary
                from autotune.tuning import tune

                with RunDisplay(verbose=options["verbose"], quiet=options["quiet"]) as progress:
                    found = tune(request, progress=progress, earlier=earlier, supervisor=supervisor)
                    progress.show_result(found.profile)
            with defer_interrupts():
                name = name_profiles(request.output).get(found.profile.workload_id)
                width = get_terminal_size((100, 24)).columns
                text = render_summary(found.profile, request.output, width=width, name=name)
                document = found.profile.model_dump_json(indent=2)
                print_result(document if options["json"] else text, f" The result is in {request.output}.")
    except KeyboardInterrupt:
        if found is None:
            raise
        print_error(f"Interrupted. The result is in {request.output}.")
        sys.exit(INTERRUPTED)
    if found.interrupted:
        sys.exit(INTERRUPTED)


@click.command(
    params=[
        *(FILE, PROFILE),
        option("-o --output FILE", "File for the result. Default: the tuned file itself."),
        *OUTPUT,
    ],
    context_settings={"auto_envvar_prefix": "DLTUNE"},
    epilog=epilog("dltune retune", "dltune check --max-age 30d || dltune retune --quiet", codes=TUNES),
)
def retune(file: str, profile: str | None, output: str | None, **options: Any) -> None:
    """Re-tune a profile with its options, starting from its settings.

    On another class of machine, the search starts from scratch, and the result is saved as a profile of its own. The
    code that FILE names is imported.
    """
    with exit_on_error(interrupted=NOTHING_MEASURED):
        from autotune.preparation import rebuild_request
        from autotune.profiles.load import select_profile
        from autotune.profiles.store import warn_if_others_can_write

        earlier = select_profile(Path(file), profile)
        warn_if_others_can_write(Path(file))
        _run_and_print(rebuild_request(earlier, output or file), options, earlier)


@click.command(
    params=[
        *(FILE, PROFILE),
        option("--max-age TIME", "Out of date if older than this, e.g. 30d."),
        option("--quick", "Measure the profile again, and its baseline if it is not as fast as predicted: about 30 s."),
        option("--no-workload", "Compare only the machine and the versions; import no code that FILE names."),
        option("--json", "Print the result as JSON."),
    ],
    epilog=epilog("dltune check || dltune retune", codes="0 still valid; 1 out of date; 2 error, no reason to retune"),
)
def check(file: str, profile: str | None, max_age: float | None, quick: bool, no_workload: bool, json: bool) -> None:
    """Check whether a profile is still valid on this machine.

    Exits 1 and lists the reasons if it is not: the machine, the workload or the size of its samples changed, or the run
    was interrupted. Version changes are shown for information. The code that FILE names is imported.
    """
    with exit_on_error(exit_code=2), raise_on_signals():
        from autotune import checking

        options: dict[str, Any] = {"profile": profile, "max_age_seconds": max_age, "quick": quick}
        with RunDisplay() as progress:
            found = checking.check(file, with_workload=not no_workload, progress=progress, **options)
        print_result(found.model_dump_json(indent=2) if json else describe_check(found, file))
    if not found.is_valid:
        sys.exit(1)


def describe_check(found: CheckResult, file: str) -> str:
    """Describe the result of a check: whether it is valid, the reasons, and other differences."""
    from autotune.report.render import format_command

    name = name_profiles(file).get(found.profile.partition("/")[2])
    advice = "Train again with dltune run" if found.is_from_training else f"Run: {format_command('retune', file, name)}"
    state = "is still valid" if found.is_valid else f"is out of date. {advice}"
    lines = [f"Profile {found.profile} {state}", *found.reasons, *(f"info: {one}" for one in found.info)]
    if (now := found.remeasured) is not None:
        rate = f"{format_rate(now.samples_per_second)}/s of the predicted {format_rate(now.predicted)}/s"
        speedup = f", {now.speedup:.2f}x the baseline's throughput" if now.speedup is not None else ""
        change = f"; the baseline reaches {now.machine_change:.0%} of before" if now.machine_change else ""
        lines += [f"re-measured: {rate}{speedup}{change}", *(f"warning: {sentence}" for sentence in now.noise)]
    return "\n  ".join(lines)
