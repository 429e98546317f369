"""`dltune check` and `dltune retune`: keep a profile up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.console import NOTHING_MEASURED, exit_on_error, print_result
from autotune.cli.options import AS_JSON, FILE, PROFILE, QUIET, TUNES, VERBOSE, epilog, option
from autotune.cli.tune import run_and_print
from autotune.system.signals import raise_on_signals
from autotune.units import format_percent, format_rate

if TYPE_CHECKING:
    from autotune.checking import CheckResult


@click.command(
    params=[
        *(FILE, PROFILE),
        option("--max-age TIME", "Out of date if older than this, e.g. 30d."),
        option("--quick", "Measure the profile and its baseline again, in about 30 s."),
        option("--no-workload", "Compare only the machine and the versions; import no code that FILE names."),
        option("--json", "Print the result as JSON."),
    ],
    epilog=epilog("dltune check || dltune retune", codes="0 still valid; 1 out of date; 2 error, no reason to retune"),
)
def check(file: str, profile: str | None, max_age: float | None, quick: bool, no_workload: bool, json: bool) -> None:
    """Check whether a profile is still valid on this machine.

    Exits 1 and lists the reasons if it is not: GPU, CPU count, memory, /dev/shm, open-file limit, start method or
    sample size changed. Version changes are shown for information. The code that FILE names is imported.
    """
    with exit_on_error(exit_code=2), raise_on_signals():
        from autotune import checking
        from autotune.cli.display import RunDisplay

        with RunDisplay() as progress:
            found = checking.check(
                Path(file),
                profile=profile,
                max_age_seconds=max_age,
                quick=quick,
                with_workload=not no_workload,
                progress=progress,
            )
        print_result(found.model_dump_json(indent=2) if json else describe_check(found, file))
    if not found.is_valid:
        sys.exit(1)


def describe_check(found: CheckResult, file: str) -> str:
    """Describe the result of a check: the verdict, its reasons, and what else has changed."""
    verdict = "is still valid" if found.is_valid else f"is out of date. Run: dltune retune {file}"
    lines = [
        f"Profile {found.profile} {verdict}",
        *found.reasons,
        *(f"info: {difference}" for difference in found.info),
    ]
    if (now := found.remeasured) is not None:
        rate = f"{format_rate(now.samples_per_second)} of the predicted {format_rate(now.predicted)}"
        speedup = f", {now.speedup:.2f}x faster than the baseline" if now.speedup is not None else ""
        change = f"; the baseline reaches {format_percent(now.machine_change)} of before" if now.machine_change else ""
        lines += [f"re-measured: {rate}{speedup}{change}", *(f"warning: {sentence}" for sentence in now.noise)]
    return "\n  ".join(lines)


@click.command(
    params=[
        *(FILE, PROFILE),
        option("--trials N", "Maximum number of trials. Default: as before."),
        option("-o --output FILE", "File for the result. Default: the tuned file itself."),
        *(AS_JSON, QUIET, VERBOSE),
    ],
    context_settings={"auto_envvar_prefix": "DLTUNE"},
    epilog=epilog("dltune retune", "dltune check --max-age 30d || dltune retune --trials 20 --quiet", codes=TUNES),
)
def retune(file: str, profile: str | None, trials: int | None, output: str | None, **options: Any) -> None:
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
        run_and_print(rebuild_request(earlier, output or file, trials), options, earlier)
