"""The command line: reads options, tunes, prints the result. Commands that only take a file are in `file_commands`.

Importing it costs click and nothing else; what a command needs is imported when it runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.commands.errors import INTERRUPTED, NOTHING_MEASURED, exit_on_error, print_result
from autotune.commands.files import COMMANDS, TRUST
from autotune.commands.manual import EPILOGS
from autotune.commands.params import (
    Assignment,
    BatchSizes,
    Budget,
    Duration,
    Range,
    build_request,
    name_parameters,
    read_project_options,
)
from autotune.errors import UsageError
from autotune.system.signals import defer_interrupts, raise_on_signals

if TYPE_CHECKING:
    from autotune.profiles.schema import TunedProfile
    from autotune.progress import ProgressListener
    from autotune.request import TuningRequest


class TuneByDefault(click.Group):
    """A group whose `tune` command may be left out when the first argument is an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `tune` in front of options that are not the group's own."""
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["tune", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=TuneByDefault,
    epilog=EPILOGS["dltune"],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="dltune", prog_name="dltune")
def cli() -> None:
    """Find the DataLoader settings that feed your training step fastest on this machine.

    Short trials of your dataset and your step run in child processes, under budgets for memory, /dev/shm and open
    files. The best settings are written to dltune.json, for training code to load.

    `tune` is implied when the first argument is an option. `dltune COMMAND --help` says more of each command.
    """


@cli.command(
    context_settings={"auto_envvar_prefix": "DLTUNE", "show_default": True},
    epilog=EPILOGS["tune"],
)
@click.option("--dataset", metavar="PKG.MOD:ATTR", help="Factory of a Dataset, DataLoader or data module.")
@click.option(
    "--dataset-arg",
    "dataset_args",
    type=Assignment(),
    multiple=True,
    metavar="K=JSON",
    envvar="DLTUNE_DATASET_ARG",
    help="Argument of the factory, JSON or a bare word; repeatable.",
)
@click.option("--collate", metavar="PKG.MOD:FN", help="collate_fn, instead of the workload's own.")
@click.option("--step", metavar="PKG.MOD:ATTR", help="Factory of your training step: make_step() -> step(batch).")
@click.option("--step-time", type=Duration(), metavar="TIME", help="Emulate a device busy that long per batch: 35ms.")
@click.option(
    "--batch-size",
    type=BatchSizes(),
    metavar="N[,N...]",
    help="Pin the batch size, or list choices; if left out, a ready DataLoader keeps its own, else 16 to 512.",
)
@click.option("--fix", type=Assignment(), multiple=True, metavar="KNOB=VALUE", help="Pin a knob: in_order=true.")
@click.option(
    "--range",
    "ranges",
    type=Range(),
    multiple=True,
    envvar="DLTUNE_RANGE",
    metavar="KNOB=LOW:HIGH",
    help="Narrow a knob: num_workers=0:16.",
)
@click.option("--trials", type=click.IntRange(1), default=40, help="Most configurations to try.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Most time for the whole run: 10m.")
@click.option(
    "--trial-time",
    type=Duration(),
    default="3s",
    metavar="TIME",
    help="Measuring time of a confirming trial; those of the search get 0.7 of it.",
)
@click.option("--stall-time", type=Duration(), default="60s", metavar="TIME", help="End a trial idle that long.")
@click.option("--epochs", type=click.IntRange(1), default=10, help="Length of the training run to promise for.")
@click.option("--seed", type=int, default=0, help="Seed of the sampler.")
@click.option(
    "--sampler",
    type=click.Choice(["model", "tpe", "gp", "random", "grid"]),
    default="model",
    help="What proposes trials: the cost model as corrected by the trials so far, or one of Optuna's samplers.",
)
@click.option("--max-memory", type=Budget(), default="80%", metavar="SIZE", help="Host memory: a share or 24GiB.")
@click.option("--max-shm", type=Budget(), default="80%", metavar="SIZE", help="/dev/shm: a share or an amount.")
@click.option("--max-gpu-memory", type=Budget(), default="90%", metavar="SIZE", help="Device memory, likewise.")
@click.option("--max-workers", type=click.IntRange(0), metavar="N", help="Most worker processes.")
@click.option("--device", default="auto", metavar="DEV", help="auto, cpu, or a torch device such as cuda:0.")
@click.option(
    "--isolation",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="Walls around trials: all that this machine allows (see dltune doctor), or none.",
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
    "--json", "as_json", is_flag=True, envvar="DLTUNE_JSON", help="Print the profile as one JSON document on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="Show nothing but the result and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Show phases, skipped configurations and tracebacks of trials.")
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
    with exit_on_error(interrupted=NOTHING_MEASURED):
        request = build_request(options)
        if options["dry_run"]:
            _print_plan(request)
            return
        _run(request, options)


@cli.command(context_settings={"show_default": True}, epilog=EPILOGS["retune"])
@click.argument("file", type=click.Path(path_type=Path), default=Path("dltune.json"))
@click.option("--profile", metavar="NAME", help="Tune this profile anew; else the one that fits this machine best.")
@click.option(
    "--trials", type=click.IntRange(1), metavar="N", show_default="a third", help="Most configurations to try."
)
@click.option("-o", "--output", metavar="FILE", help="Where the result is written; the tuned file itself if left out.")
@click.option(
    "--storage", metavar="URL", envvar="DLTUNE_STORAGE", help="Optuna storage; that of the profile if left out."
)
@TRUST
@click.option(
    "--json", "as_json", is_flag=True, envvar="DLTUNE_JSON", help="Print the profile as one JSON document on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="Show nothing but the result and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Show phases, skipped configurations and tracebacks of trials.")
def retune(
    file: Path,
    profile: str | None,
    trials: int | None,
    output: str | None,
    storage: str | None,
    trust: bool,
    **options: Any,
) -> None:
    """Tune a profile anew, from where it stands.

    FILE is the tuned file, dltune.json if left out. The stored request is asked again, with a third of its trials. On
    another machine than the profile's the result gets a name of its own, and the search starts from the nearest
    profile. Other profiles stay; the earlier result becomes part of the history.

    The dataset and the step that FILE names are imported and called, and the storage that it names is opened, as make
    runs a Makefile: retune files of your own, or read them first.
    """
    with exit_on_error(interrupted=NOTHING_MEASURED):
        from autotune.profiles.load import describe_local_hardware, list_profiles, pick_fitting
        from autotune.profiles.trust import refuse_what_others_may_write
        from autotune.search.warm_start import rebuild_request
        from autotune.system.machine import read_machine

        if not trust:
            refuse_what_others_may_write(file)
        machine = read_machine()
        earlier, _ = pick_fitting(list_profiles(file, profile), machine)
        request = rebuild_request(
            earlier, describe_local_hardware(machine, earlier), output or str(file), trials, storage
        )
        _run(request, options, earlier)


def _run(request: TuningRequest, options: dict[str, Any], earlier: TunedProfile | None = None) -> None:
    """Tune and print the result."""
    from autotune.report.text import describe_outcome
    from autotune.tuning import tune

    with raise_on_signals():
        with _make_listener(request, options) as progress:
            outcome = tune(request, progress=progress, earlier=earlier)
        with defer_interrupts():
            text = (
                outcome.profile.model_dump_json(indent=2)
                if options["as_json"]
                else describe_outcome(
                    outcome.profile,
                    outcome.plan.workload.kind,
                    outcome.runner_up,
                    request.output,
                    interrupted=outcome.interrupted,
                )
            )
            print_result(text, f" The result is in {request.output}.")
    if outcome.interrupted:
        sys.exit(INTERRUPTED)


def _make_listener(request: TuningRequest, options: dict[str, Any]) -> ProgressListener:
    if options["quiet"]:
        from autotune.progress import ProgressListener

        return ProgressListener()
    from autotune.commands.display import LiveDisplay, PlainDisplay

    display = LiveDisplay if sys.stderr.isatty() else PlainDisplay
    return display(request, verbose=options["verbose"])


def _print_config(ctx: click.Context) -> None:
    """Show each option with the place its value comes from."""
    sources = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "pyproject.toml"}
    for parameter in ctx.command.params:
        if parameter.name in (None, "print_config"):
            continue
        source = ctx.get_parameter_source(parameter.name)
        value = ctx.params[parameter.name]
        shown = json.dumps(value, default=str)
        option = max(parameter.opts, key=len)
        click.echo(f"{option:<18} {shown:<28} {sources.get(source.name if source else '', 'default')}")


def _print_plan(request: TuningRequest) -> None:
    """Probe, plan, and show what would be tried first."""
    from autotune.commands.display import PlainDisplay
    from autotune.knobs import describe_config
    from autotune.tuning import plan_only

    plan = plan_only(request, progress=PlainDisplay(request))
    click.echo(f"Would try at most {request.trials} configurations, these first:")
    for config in plan.initial_configs():
        click.echo(f"  {describe_config(config)}  predicted {plan.predict(config):,.0f}/s")


for _command in COMMANDS:
    cli.add_command(_command)


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
