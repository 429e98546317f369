"""`dltune check`: does a profile still hold here?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result
from autotune.cli.params import FILE, TRUST, read_seconds
from autotune.system.signals import raise_on_signals
from autotune.units import format_rate

if TYPE_CHECKING:
    from autotune.checking import CheckResult
    from autotune.validation.remeasurement import Remeasurement


@click.command(
    epilog=epilog(
        "dltune check || dltune retune          # in a job, before it trains",
        "dltune check --no-workload             # half a second: the machine and the versions alone",
        "dltune check --quick --max-age 30d",
        "dltune check tuned/dltune.json --json",
        codes="0 it fits; 1 it should be retuned, and why; 2 error, which is no reason to tune",
    )
)
@FILE
@click.option("--profile", metavar="NAME", help="Check this profile; else the one that fits this machine best.")
@click.option("--max-age", type=read_seconds, metavar="TIME", help="Retune what is older: 30d.")
@click.option("--quick", is_flag=True, help="Measure the profile against its baseline again, in about 30 s.")
@click.option(
    "--workload/--no-workload",
    default=True,
    show_default=True,
    help="Load the dataset and compare the number and size of its samples.",
)
@click.option(
    "--record", is_flag=True, help="Add what --quick measures to the profile, if this machine is like its own."
)
@TRUST
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check(
    file: Path,
    profile: str | None,
    max_age: float | None,
    quick: bool,
    workload: bool,
    record: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Tell whether a profile still fits machine and data.

    FILE is the tuned file, dltune.json if left out. What decides is named as a reason: accelerators, CPUs, memory,
    /dev/shm, open files, the start method of workers, and the size of the samples. Other versions are named as well,
    and do not decide.

    The dataset and the step that FILE names are imported and called, as make runs a Makefile: check files of your own,
    or read them first. With --no-workload, and without --quick, nothing that it names is imported.
    """
    with exit_on_error(exit_code=2), raise_on_signals():
        from autotune import checking

        progress = None
        if quick:
            from autotune.cli.display import ConfirmationDisplay

            progress = ConfirmationDisplay()
        found = checking.check(
            file,
            profile=profile,
            max_age_seconds=max_age,
            quick=quick,
            with_workload=workload,
            trust=trust,
            record=record,
            progress=progress,
        )
        print_result(found.model_dump_json(indent=2) if as_json else describe_check(found, str(file)))
    if not found.fits:
        sys.exit(1)


def describe_check(found: CheckResult, file: str) -> str:
    """Write what a check found: the verdict, each reason, what differs without deciding."""
    verdict = "fits this machine" if found.fits else f"should be retuned: dltune retune {file}"
    lines = [f"Profile {found.profile} {verdict}"]
    lines += [f"  {reason}" for reason in found.reasons]
    lines += [f"  differs, without deciding: {advice}" for advice in found.advice]
    if found.remeasured is not None:
        lines.append(f"  {_describe_remeasured(found.remeasured)}")
        lines += [f"  note: {sentence}" for sentence in found.remeasured.noise]
    if found.is_recorded:
        lines.append(f"  recorded in {file}: dltune show says how far equal machines differ")
    return "\n".join(lines)


def _describe_remeasured(found: Remeasurement) -> str:
    now, then = format_rate(found.samples_per_second), format_rate(found.predicted)
    speedup = f", {found.speedup:.2f} x the baseline" if found.speedup is not None else ""
    machine = f"; the baseline reaches {found.machine_change:.2f} of what it did" if found.machine_change else ""
    return f"measured again: {now} of the {then} predicted{speedup}{machine}"
