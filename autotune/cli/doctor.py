"""`dltune doctor`: can tuning start here, and at full speed?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.epilog import epilog
from autotune.cli.errors import exit_on_error
from autotune.cli.output import print_result

if TYPE_CHECKING:
    from autotune.cli.doctor_checks import DoctorCheck


@click.command(
    epilog=epilog(
        "dltune doctor",
        "dltune doctor --data /data/images",
        "dltune doctor --json",
        codes="0 tuning can start, warnings or not; 1 a problem makes it impossible; 2 there is no such PATH",
    )
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH", help="Look at the storage under the dataset as well."
)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def doctor(data: Path | None, as_json: bool) -> None:
    """Say what this machine allows, and how to fix it.

    Looks at the machine, the container and Python, as training will meet them: run it where training runs. Each line
    is ok, a warning (it costs speed or certainty) or a problem (tuning is impossible).
    """
    from autotune.cli.doctor_checks import collect_facts, run_checks

    with exit_on_error():
        checks = run_checks(collect_facts(data))
        document = json.dumps([check.model_dump() for check in checks], indent=2)
        print_result(document if as_json else describe_checks(checks))
    if any(check.state == "problem" for check in checks):
        sys.exit(1)


def describe_checks(checks: Iterable[DoctorCheck]) -> str:
    """Write the diagnosis as a table for people, each fix below its finding."""
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<18} {check.finding}")
        if check.fix:
            lines.append(f"{'':<27} -> {check.fix}")
    return "\n".join(lines)
