"""`dltune retune`: what is fastest now, starting from an earlier answer?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autotune.cli.epilog import TUNES, epilog
from autotune.cli.errors import NOTHING_MEASURED, exit_on_error
from autotune.cli.launch import follow_launcher
from autotune.cli.params import AS_JSON, FILE, QUIET, TIMINGS, TRUST, VERBOSE
from autotune.cli.tune import run_and_print


@click.command(
    context_settings={"show_default": True},
    epilog=epilog(
        "dltune retune",
        "dltune retune tuned/dltune.json --profile h100x1-12c-64g-a41f",
        "dltune check --max-age 30d || dltune retune --trials 20 --quiet",
        codes=f"0 done; 1 failed; 2 FILE cannot be read, or an error in your code; {TUNES}",
    ),
)
@FILE
@click.option("--profile", metavar="NAME", help="Retune this profile; else the one that fits this machine best.")
@click.option(
    "--trials", type=click.IntRange(1), metavar="N", show_default="a third", help="Most configurations to try."
)
@click.option("-o", "--output", metavar="FILE", help="Where the result is written; the tuned file itself if left out.")
@click.option(
    "--storage", metavar="URL", envvar="DLTUNE_STORAGE", help="Optuna storage; that of the profile if left out."
)
@TRUST
@TIMINGS
@AS_JSON
@QUIET
@VERBOSE
def retune(
    file: Path,
    profile: str | None,
    trials: int | None,
    output: str | None,
    storage: str | None,
    trust: bool,
    **options: Any,
) -> None:
    """Tune a profile again, from where it stands.

    FILE is the tuned file, dltune.json if left out. The stored request is asked again, with a third of its trials. On
    another machine than the profile's the result gets a name of its own, and the search starts from the nearest
    profile. Other profiles stay; the earlier result becomes part of the history.

    The dataset and the step that FILE names are imported and called, and the storage that it names is opened, as make
    runs a Makefile: retune files of your own, or read them first.
    """
    with exit_on_error(), follow_launcher(1), exit_on_error(interrupted=NOTHING_MEASURED):
        from autotune.profiles.selection import describe_local_hardware, nearest_profile
        from autotune.profiles.trust import refuse_what_others_may_write
        from autotune.search.warm_start import rebuild_request
        from autotune.system.machine import read_machine

        if not trust:
            refuse_what_others_may_write(file)
        machine = read_machine()
        earlier, _ = nearest_profile(file, profile, machine)
        here = describe_local_hardware(machine, earlier)
        run_and_print(rebuild_request(earlier, here, output or str(file), trials, storage), options, earlier)
