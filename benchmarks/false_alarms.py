"""Does the probe warn of what is not there? It looks at healthy datasets, of the examples and of other libraries.

Each is given to `dltune --trials 0`, which probes it and predicts; printed is what was warned of, and its seconds.

    python -m benchmarks.false_alarms [--only NAME ...] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autotune import TunedProfile
from autotune.config import FrozenModel
from benchmarks.libraries import LIBRARIES
from benchmarks.tables import format_table, say
from benchmarks.training.environment import make_environment

RESULTS: Final = Path("benchmarks/results/false_alarms.json")
EXAMPLES: Final = ("images", "tabular", "tutorial", "shards", "hf_dataset")
ALARMS: Final = (
    "Workers deliver other data",
    "Each worker will copy up to",
    "A worker may use",
    "Some samples take far longer",
    "An epoch reads about",
    "One of two workers delivers",
    "Reading this dataset without workers leaves threads",
)  # how the sentences begin that the probe warns with


class Look(FrozenModel):
    """What a probe of a healthy dataset said."""

    name: str
    seconds: float  # of the whole command
    alarms: tuple[str, ...]
    notes: tuple[str, ...]  # whatever else it said


def look(name: str, option: str, factory: str) -> Look:
    """Probe one of them as its user would."""
    command = [sys.executable, "-m", "autotune", option, factory, "--trials", "0", "--step-time", "3ms", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        finished = subprocess.run(
            [*command, "--batch-size", "32"],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env=make_environment() | {"PYTHONWARNINGS": "ignore"},
        )
        seconds = time.monotonic() - started
    if finished.returncode:
        raise RuntimeError(finished.stderr[-1000:])
    said = TunedProfile.model_validate_json(finished.stdout).result.warnings
    alarms = tuple(sentence for sentence in said if sentence.startswith(ALARMS))
    return Look(name=name, seconds=seconds, alarms=alarms, notes=tuple(one for one in said if one not in alarms))


def tabulate(looks: Sequence[Look]) -> str:
    """Lay out what was warned of."""
    rows = [(one.name, f"{one.seconds:.1f}", " ".join(one.alarms) or "-") for one in looks]
    return format_table(("dataset", "seconds", "alarms"), rows)


def main() -> None:
    """Look at each, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    healthy = {name: ("--dataset", f"examples.{name}:make_dataset") for name in EXAMPLES}
    healthy |= {one.name: (one.option, f"benchmarks.workloads.libraries:{one.name}") for one in LIBRARIES}
    parser.add_argument("--only", nargs="+", choices=healthy, default=list(healthy), metavar="NAME", help="(all)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    looks: list[Look] = []
    for name in given.only:
        try:
            looks.append(look(name, *healthy[name]))
        except RuntimeError as error:
            say(f"{name} failed: {error}")
            continue
        say(f"{name}: {len(looks[-1].alarms)} alarms, {looks[-1].seconds:.1f} s")
        given.results.write_text(json.dumps([one.model_dump() for one in looks], indent=1) + os.linesep)
    print(tabulate(looks))


if __name__ == "__main__":
    main()
