"""Is the predicted throughput reached, is the choice as good as the best of a grid, and what would others choose?

For each workload: let dltune, random search and loadtune choose; look at a grid of configurations by short runs; then
measure what was chosen, the best of the grid and some others in turn, round by round, each time once by a trial (the
prediction) and once by a whole training run (the truth). About seven minutes a workload.

    python -m benchmarks.suite [--only NAME ...] [--results FOLDER] [--rounds 3] [--skip-peers] [--skip-grid]
                               [--minutes M] [--again] [--quick]

`python -m benchmarks.gpu` asks the same on a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autotune.system.machine import count_whole_cpus, read_machine
from benchmarks import report
from benchmarks.budget import Budget
from benchmarks.session import Options, Session, make_instruments
from benchmarks.training.environment import make_environment
from benchmarks.workloads.catalogue import CPU_WORKLOADS
from benchmarks.workloads.workload import BenchWorkload


@dataclass(frozen=True, slots=True)
class Suite:
    """Some workloads, and what is asked of them where the command line says nothing else."""

    description: str | None  # of `--help`
    workloads: tuple[BenchWorkload, ...]
    results: Path  # folder
    rehearsals: str  # name of the folder for those of a rehearsal
    rounds: int
    minutes: float | None = None
    device: str | None = None  # where the steps run; None for steps that have none


CPU: Final = Suite(__doc__, CPU_WORKLOADS, Path("benchmarks/results"), "dltune-bench-quick", rounds=3)


def parse_arguments(suite: Suite, arguments: Sequence[str] | None = None) -> tuple[Options, list[BenchWorkload]]:
    """Read the command line: how much is measured, and on what."""
    parser = _make_parser(suite)
    given = parser.parse_args(arguments)
    if given.rounds < 1 or (given.minutes is not None and given.minutes <= 0):
        parser.error("--rounds and --minutes: more than nothing")
    elsewhere = Path(tempfile.gettempdir()) / suite.rehearsals
    options = Options(
        results=given.results or (elsewhere if given.quick else suite.results),
        rounds=1 if given.quick else given.rounds,
        minutes=given.minutes,
        peers=not given.skip_peers,
        grid=not given.skip_grid,
        quick=given.quick,
        again=given.again,
    )
    chosen = [workload for workload in suite.workloads if workload.name in given.only]
    if suite.device is not None:
        chosen = [replace(workload, device=given.device) for workload in chosen]
    return options, [workload.shorten() if given.quick else workload for workload in chosen]


def _make_parser(suite: Suite) -> argparse.ArgumentParser:
    names = [workload.name for workload in suite.workloads]
    allowed = "as long as it takes" if suite.minutes is None else f"{suite.minutes:g}"
    parser = argparse.ArgumentParser(
        description=suite.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    if suite.device is not None:
        add("--device", default=suite.device, help=f"where the steps run ({suite.device})")
    add("--results", type=Path, help=f"folder of the results ({suite.results})")
    add("--rounds", type=int, default=suite.rounds, help=f"rounds of the entrants ({suite.rounds})")
    add("--minutes", type=float, default=suite.minutes, help=f"time allowed for everything ({allowed})")
    add("--skip-peers", action="store_true", help="run neither loadtune nor random search")
    add("--skip-grid", action="store_true", help="hold choices against siblings and hands alone")
    add("--quick", action="store_true", help="rehearse: tiny sizes, one round, kept elsewhere")
    add("--again", action="store_true", help="measure only the rounds anew, of choices kept earlier")
    return parser


def main(suite: Suite = CPU) -> None:
    """Measure, keep what was measured, print the tables."""
    options, workloads = parse_arguments(suite)
    os.environ["PYTHONPATH"] = make_environment()["PYTHONPATH"]  # for the trials: this project may not be installed
    if options.quick and suite.device is not None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other on a busy machine take minutes
    cpus = count_whole_cpus(read_machine().usable_cpus)
    budget = Budget(math.inf if options.minutes is None else 60 * options.minutes)
    session = Session(options, make_instruments(quick=options.quick), budget, cpus)
    session.run(workloads)
    report.publish(options.results)
    if session.untried:
        print(f"\nNo time for: {', '.join(session.untried)}")
    if session.failed:
        sys.exit(f"failed: {', '.join(dict.fromkeys(session.failed))}")


if __name__ == "__main__":
    main()
