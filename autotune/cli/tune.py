"""`dltune tune`: which settings feed the step fastest?"""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autotune.cli.epilog import TUNES, epilog
from autotune.cli.errors import INTERRUPTED, NOTHING_MEASURED, exit_on_error
from autotune.cli.launch import follow_launcher
from autotune.cli.output import print_result
from autotune.cli.params import (
    AS_JSON,
    QUIET,
    TIMINGS,
    VERBOSE,
    build_request,
    check_budget,
    read_assignment,
    read_batch_sizes,
    read_choices,
    read_range,
    read_ranks,
    read_seconds,
)
from autotune.errors import UsageError
from autotune.system.signals import defer_interrupts, raise_on_signals

if TYPE_CHECKING:
    from autotune.profiles.schema import TunedProfile
    from autotune.progress import ProgressListener
    from autotune.request import TuningRequest


@click.command(
    context_settings={"auto_envvar_prefix": "DLTUNE", "show_default": True},
    epilog=epilog(
        "dltune train.py",
        "dltune train.py:train_loader --step train.py:make_step",
        "dltune --dataset data.images:make_dataset --trials 40",
        "dltune --dataset data.images:make_dataset --step train:make_step --batch-size 64",
        "dltune --dataset data.images:make_dataset --dataset-arg root=/data --fix in_order=true",
        "dltune --dataset data.images:make_dataset --step-time 35ms --max-shm 64MB --timeout 10m",
        "dltune --dataset data.images:make_dataset --range num_workers=0:16 --dry-run",
        more="Options are also read from DLTUNE_* variables (DLTUNE_TRIALS=20) and from [tool.dltune] in "
        "pyproject.toml; a flag wins over the environment, the environment over the file.",
        codes=f"0 done; 1 failed; 2 usage or an error in your code; {TUNES}",
    ),
)
@click.argument("script", metavar="[SCRIPT[:NAME]]", required=False)
@click.option("--dataset", metavar="PKG.MOD:ATTR", help="Factory of a Dataset, DataLoader or data module.")
@click.option("--loader", metavar="PKG.MOD:FN", help="Function of the settings that makes any loader, instead.")
@click.option(
    "--dataset-arg",
    "dataset_args",
    type=read_assignment,
    multiple=True,
    metavar="K=JSON",
    envvar="DLTUNE_DATASET_ARG",
    help="Argument of the factory, JSON or a bare word; repeatable.",
)
@click.option("--line", type=click.IntRange(1), metavar="N", help="Where SCRIPT makes the loader to tune.")
@click.option("--split", metavar="NAME", help="Which of several loaders or datasets the factory returns: train.")
@click.option(
    "--knob",
    "knobs",
    type=read_choices,
    multiple=True,
    envvar="DLTUNE_KNOB",
    metavar="NAME=CHOICES",
    help="Search an argument of your factory as well: decoder=pil,cv2 or cache_size=64:4096; repeatable.",
)
@click.option("--collate", metavar="PKG.MOD:FN", help="collate_fn, instead of the workload's own.")
@click.option("--step", metavar="PKG.MOD:ATTR", help="Factory of your training step: make_step() -> step(batch).")
@click.option("--step-time", type=read_seconds, metavar="TIME", help="Emulate a device busy that long per batch: 35ms.")
@click.option(
    "--batch-size",
    type=read_batch_sizes,
    metavar="N[,N...]",
    help="Pin the batch size, or list choices; if left out, a ready DataLoader keeps its own, else 16 to 512.",
)
@click.option("--fix", type=read_assignment, multiple=True, metavar="KNOB=VALUE", help="Pin a knob: in_order=true.")
@click.option(
    "--range",
    "ranges",
    type=read_range,
    multiple=True,
    envvar="DLTUNE_RANGE",
    metavar="KNOB=LOW:HIGH",
    help="Narrow a knob: num_workers=0:16.",
)
@click.option(
    "--trials", type=click.IntRange(0), default=40, help="Most configurations to try; 0 predicts the answer in seconds."
)
@click.option("--timeout", type=read_seconds, metavar="TIME", help="Most time for the whole run: 10m.")
@click.option(
    "--trial-time",
    type=read_seconds,
    default="2s",
    metavar="TIME",
    help="Measuring time of a confirming trial; those of the search get 0.6 of it.",
)
@click.option("--stall-time", type=read_seconds, default="60s", metavar="TIME", help="End a trial idle that long.")
@click.option(
    "--epochs", type=click.IntRange(1), default=10, help="Length of the training run to predict throughput for."
)
@click.option(
    "--explain",
    type=click.Choice(["full", "brief", "none"]),
    default="brief",
    help="What each setting gave: measured, as the trials of the search tell it, or left out.",
)
@click.option("--seed", type=int, default=0, help="Seed of the sampler.")
@click.option(
    "--sampler",
    type=click.Choice(["model", "tpe", "gp", "random", "grid"]),
    default="model",
    help="What proposes trials: the cost model as corrected by the trials so far, or one of Optuna's samplers.",
)
@click.option("--max-memory", type=check_budget, default="80%", metavar="SIZE", help="Host memory: a share or 24GiB.")
@click.option("--max-shm", type=check_budget, default="80%", metavar="SIZE", help="/dev/shm: a share or an amount.")
@click.option("--max-gpu-memory", type=check_budget, default="90%", metavar="SIZE", help="Device memory, likewise.")
@click.option("--max-workers", type=click.IntRange(0), metavar="N", help="Most worker processes.")
@click.option("--device", default="auto", metavar="DEV", help="auto, cpu, or a torch device such as cuda:0.")
@click.option(
    "--ranks",
    type=read_ranks,
    default=1,
    metavar="N",
    help="Training processes on this host, each with a loader of its own; auto takes one for each GPU.",
)
@click.option(
    "--start-method",
    type=click.Choice(["auto", "fork", "forkserver", "spawn"]),
    help="How workers start, instead of the interpreter's way; auto takes what starts them fastest.",
)
@click.option("--main", metavar="FILE", help="Script of your training: workers that are not forked import it.")
@click.option(
    "--cold", metavar="PATH", help="What the dataset reads: dropped from memory before each epoch of a trial."
)
@click.option(
    "--isolation",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="Sandbox of trials: all that this machine allows (see dltune doctor), or none.",
)
@click.option("-o", "--output", default="dltune.json", metavar="FILE", help="Where the result is written.")
@click.option("--profile", metavar="NAME", help="Name of the profile in the file; made from the machine if left out.")
@click.option("--storage", metavar="URL", help="Optuna storage; SQLite under .dltune/ if left out.")
@click.option("--study-name", metavar="NAME", help="Name of the Optuna study.")
@click.option(
    "--resume/--no-resume",
    default=None,
    show_default="an unfinished run only",
    help="Continue the last run of this request, or start afresh.",
)
@click.option(
    "--afresh", is_flag=True, help="Search again, even where the file holds an answer to this request that still holds."
)
@TIMINGS
@AS_JSON
@QUIET
@VERBOSE
@click.option("--dry-run", is_flag=True, help="Probe and plan, list what would be tried first, and stop.")
@click.option("--print-config", is_flag=True, help="Show each option's value and where it comes from, and stop.")
@click.pass_context
def tune(ctx: click.Context, /, **options: Any) -> None:
    """Tune the loader of a dataset for this machine.

    A probe measures what samples, batches and workers cost, trials search the settings, and the best few are measured
    again in fresh processes, in turn with your own. After Ctrl-C the best so far is written, and the same command goes
    on from there.
    """
    if options["print_config"]:
        _print_config(ctx)
        return
    with (
        exit_on_error(),
        follow_launcher(options["ranks"]) as options["ranks"],
        exit_on_error(interrupted=NOTHING_MEASURED),
    ):
        _read_script(ctx, options)
        request = build_request(options)
        if options["dry_run"]:
            _print_plan(request)
        elif options["afresh"] or request.resume is not None or not _print_standing_answer(request, options):
            run_and_print(request, options)


def _read_script(ctx: click.Context, options: dict[str, Any]) -> None:
    """Put the name of what is to be tuned of a script in the place of --dataset."""
    script = options.pop("script")
    line = options.pop("line")
    if script is None:
        if line is not None:
            raise UsageError("--line says where a script makes its loader: give the script, as in dltune train.py.")
        return
    for name in ("dataset", "loader"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{script} and --{name} exclude each other: give one of them.")
    from autotune.cli.scripts import choose_name

    options["dataset"], split = choose_name(script, line, dict(options["dataset_args"]))
    options["loader"], options["split"] = None, options["split"] or split


def _print_config(ctx: click.Context) -> None:
    """Show each option with the place its value comes from."""
    sources = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "pyproject.toml"}
    for parameter in ctx.command.params:
        if parameter.name in (None, "print_config"):
            continue
        source = ctx.get_parameter_source(parameter.name)
        value = json.dumps(ctx.params[parameter.name], default=str)
        option = max(parameter.opts, key=len)
        click.echo(f"{option:<18} {value:<28} {sources.get(source.name if source else '', 'default')}")


def _print_plan(request: TuningRequest) -> None:
    """Probe, plan, and show what would be tried first."""
    from autotune.cli.display import PlainDisplay
    from autotune.preparation import plan_only
    from autotune.settings import describe_config

    plan = plan_only(request, progress=PlainDisplay(request))
    click.echo(f"Would try at most {request.trials} configurations, these first:")
    for config in plan.initial_configs():
        click.echo(f"  {describe_config(config)}  predicted {plan.predict(config):,.0f}/s")


def _print_standing_answer(request: TuningRequest, options: dict[str, Any]) -> bool:
    """Print what an earlier run answered, where it was measured to hold still; else tell why not, or that none did."""
    from autotune.report.outcome import describe_standing
    from autotune.standing_answer import find_answer, verify

    if (answer := find_answer(request)) is None:
        return False
    with raise_on_signals(), _make_listener(request, options) as progress:
        found = verify(request, answer, progress)
        if not found.fits:
            progress.show_warning(f"profile {answer.name} is searched anew: {'; '.join(found.reasons)}")
            return False
    assert found.remeasured is not None
    text = describe_standing(answer, request.output, found.remeasured.samples_per_second, width=_read_width())
    print_result(answer.model_dump_json(indent=2) if options["as_json"] else text)
    return True


def run_and_print(request: TuningRequest, options: dict[str, Any], earlier: TunedProfile | None = None) -> None:
    """Tune, perhaps from an earlier result, and print the result as `quiet`, `verbose` and `as_json` say."""
    from autotune.runner.starting import Starter

    with raise_on_signals():
        with Starter(request.workload.working_dir) as starter, _make_listener(request, options) as progress:
            from autotune.report.outcome import describe_outcome  # while torch is being imported
            from autotune.report.text import describe_time_spent
            from autotune.tuning import tune

            found = tune(request, progress=progress, earlier=earlier, starter=starter)
        with defer_interrupts():
            if options["as_json"]:
                text = found.profile.model_dump_json(indent=2)
            else:
                kind, cut = found.plan.workload.kind, found.interrupted
                text = describe_outcome(
                    found.profile, kind, found.runner_up, request.output, interrupted=cut, width=_read_width()
                )
                spent = found.profile.search.time_spent if options["timings"] else ()
                text = "\n".join([*(f"{phase.phase:<12} {describe_time_spent(phase)}" for phase in spent), text])
            print_result(text, f" The result is in {request.output}.")
    if found.interrupted:
        sys.exit(INTERRUPTED)


def _read_width() -> int:
    """Read how many columns the summary has: those of the terminal, if it goes to one."""
    from autotune.report.outcome import WIDTH

    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def _make_listener(request: TuningRequest, options: dict[str, Any]) -> ProgressListener:
    if options["quiet"]:
        from autotune.progress import ProgressListener

        return ProgressListener()
    if sys.stderr.isatty():
        from autotune.cli.live_display import LiveDisplay

        return LiveDisplay(request, verbose=options["verbose"])
    from autotune.cli.display import PlainDisplay

    return PlainDisplay(request, verbose=options["verbose"])
