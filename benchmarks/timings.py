"""Where do the seconds of a run go? Each workload is tuned as its user would, with the options that nobody gave.

python -m benchmarks.timings [--only NAME ...] [--results FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from autotune.trial.time_spent import Activity, Phase
from pydantic import TypeAdapter

from autotune.profiles.store import write_atomically
from autotune.settings import describe_config
from benchmarks.analysis.verdicts import format_table
from benchmarks.progress import say_choice
from benchmarks.records import Tuning
from benchmarks.tuners.dltune import tune
from benchmarks.workloads.catalogue import CPU_WORKLOADS, find_workload

RESULTS: Final = Path("benchmarks/results/timings.json")
WORKLOADS: Final = tuple(workload.name for workload in CPU_WORKLOADS[:9])
TUNINGS: Final = TypeAdapter(dict[str, Tuning])
PHASES: Final = get_args(Phase)
ACTIVITIES: Final = get_args(Activity)


def tabulate(tunings: Mapping[str, Tuning]) -> str:
    """Lay the seconds of each workload out, by phase of the run and, once more, by what was done in them."""
    rows = [_write_row(name, tuning) for name, tuning in tunings.items()]
    middle = statistics.median(tuning.seconds for tuning in tunings.values())
    head = ("workload", "all", *PHASES, *(activity.replace("_", " ") for activity in ACTIVITIES), "choice")
    return format_table(head, [*rows, ("median", f"{middle:.1f}", *[""] * (len(head) - 2))])


def _write_row(name: str, tuning: Tuning) -> tuple[str, ...]:
    spent = {phase.phase: phase for phase in tuning.time_spent}
    by_phase = [sum(getattr(spent[phase], what) for what in ACTIVITIES) if phase in spent else 0.0 for phase in PHASES]
    by_activity = [sum(getattr(phase, what) for phase in tuning.time_spent) for what in ACTIVITIES]
    figures = (tuning.seconds, *by_phase, *by_activity)
    return name, *(f"{seconds:.1f}" for seconds in figures), describe_config(tuning.config)


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune, keep what was found at once, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="NAME", help=str(WORKLOADS))
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args(arguments)
    found: dict[str, Tuning] = {}
    for name in given.only:
        found[name] = tune(find_workload(name)).model_copy(update={"lines": ()})
        say_choice(found[name])
        write_atomically(given.results, TUNINGS.dump_json(found, indent=1).decode() + "\n")
    print(tabulate(found))


if __name__ == "__main__":
    main()
