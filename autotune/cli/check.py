"""`dltune check` and `dltune retune`: keep a profile up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import NOTHING_MEASURED, exit_on_error, print_result
from autotune.cli.options import AS_JSON, FILE, PROFILE, QUIET, VERBOSE, epilog, seconds
from autotune.cli.tune import run_and_print
from autotune.system.signals import raise_on_signals
from autotune.units import format_percent, format_rate

if TYPE_CHECKING:
    from autotune.checking import CheckResult


@click.command(
    params=[FILE, PROFILE],
    epilog=epilog(
        "dltune check || dltune retune          # in a job, before it trains",
        "dltune check --no-workload             # half a second: only the machine and the versions",
        "dltune check --quick --max-age 30d",
        codes="0 still valid; 1 out of date, with the reasons; 2 error, which is no reason to retune",
    ),
)
@click.option("--max-age", type=seconds, metavar="TIME", help="Out of date if older than this, e.g. 30d.")
@click.option("--quick", is_flag=True, help="Measure the profile and its baseline again, in about 30 s.")
@click.option(
    "--workload/--no-workload", default=True, show_default=True, help="Load the dataset and compare its samples."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(file: str, profile: str | None, max_age: float | None, quick: bool, workload: bool, as_json: bool) -> None:
    """Check whether a profile is still valid on this machine.

    Exits 1 and lists the reasons if it is not: GPU, CPU count, memory, /dev/shm, open-file limit, start method or
    sample size changed. Version changes are shown for information.

    Unless --no-workload is given without --quick, the code that FILE names is imported.
    """
    with exit_on_error(exit_code=2), raise_on_signals():
        from autotune import checking
        from autotune.cli.display import StatusDisplay

        with StatusDisplay() as progress:
            found = checking.check(
                Path(file),
                profile=profile,
                max_age_seconds=max_age,
                quick=quick,
                with_workload=workload,
                progress=progress,
            )
        print_result(found.model_dump_json(indent=2) if as_json else describe_check(found, file))
    if not found.fits:
        sys.exit(1)


def describe_check(found: CheckResult, file: str) -> str:
    """Describe the result of a check: the verdict, its reasons, and what else has changed."""
    verdict = "is still valid" if found.fits else f"is out of date. Run: dltune retune {file}"
    lines = [f"Profile {found.profile} {verdict}"]
    lines += [f"  {reason}" for reason in found.reasons]
    lines += [f"  info: {advice}" for advice in found.advice]
    if (now := found.remeasured) is not None:
        rate = f"{format_rate(now.samples_per_second)} of the predicted {format_rate(now.predicted)}"
        speedup = f", {now.speedup:.2f}x faster than the baseline" if now.speedup is not None else ""
        change = f"; the baseline reaches {format_percent(now.machine_change)} of before" if now.machine_change else ""
        lines += [f"  re-measured: {rate}{speedup}{change}", *(f"  warning: {sentence}" for sentence in now.noise)]
    return "\n".join(lines)


@click.command(
    params=[FILE, PROFILE, AS_JSON, QUIET, VERBOSE],
    context_settings={"auto_envvar_prefix": "DLTUNE"},
    epilog=epilog(
        "dltune retune",
        "dltune retune tuned/dltune.json --profile h100x1-12c-64g",
        "dltune check --max-age 30d || dltune retune --trials 20 --quiet",
        codes="0 done; 1 failed; 2 FILE is invalid, or an error in your code; 3 no configuration works; "
        "130 interrupted, with the best so far saved",
    ),
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Maximum number of trials. Default: as before.")
@click.option("-o", "--output", metavar="FILE", help="File for the result. Default: the tuned file itself.")
def retune(file: str, profile: str | None, trials: int | None, output: str | None, **options: Any) -> None:
    """Tune a profile again with its options, starting from its current settings.

    On another machine, the search starts from the most similar profile, and the result becomes a profile of its own.
    The code that FILE names is imported.
    """
    with exit_on_error(interrupted=NOTHING_MEASURED):
        from autotune.profiles.match import nearest_profile
        from autotune.search.warm_start import rebuild_request

        earlier = nearest_profile(Path(file), profile)
        run_and_print(rebuild_request(earlier, output or file, trials), options, earlier)
