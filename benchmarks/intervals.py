"""How often do the 95% intervals contain the throughput of whole training runs?

Each workload is tuned several times, as by a user, and its recommended configuration then trains whole runs in fresh
processes. Rounds go over all workloads, so that a change of the machine meets all of them.

    python -m benchmarks.intervals [--only NAME ...] [--rounds 5] [--minutes M] [--results FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from autotune import TunedProfile
from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.settings import describe_config
from benchmarks.suite import train_whole_run
from benchmarks.tables import format_table, say
from benchmarks.training import TrainingError
from benchmarks.tuners import tune_profile
from benchmarks.workloads.catalogue import CPU_WORKLOADS
from benchmarks.workloads.workload import BenchWorkload

RESULTS: Final = Path("benchmarks/results/intervals.json")
WHOLE_RUNS: Final = 3


class Case(FrozenModel):
    """One tuning run, and the whole runs after it.

    Attributes:
        workload: Name of the workload.
        date: Start, UTC.
        seconds: Duration of the tuning run.
        config: What it recommends.
        validation_runs: Samples per second of each run of the validation.
        predicted: Its prediction, samples per second.
        predicted_ci95: Its 95% interval.
        whole_runs: Samples per second of whole runs.
    """

    workload: str
    date: datetime
    seconds: float
    config: LoaderConfig
    validation_runs: tuple[float, ...]
    predicted: float
    predicted_ci95: Interval | None
    whole_runs: tuple[float, ...]

    @property
    def truth(self) -> float:
        """Samples per second of the median whole run."""
        return statistics.median(self.whole_runs)

    @property
    def error(self) -> float:
        """The prediction over the truth, minus 1."""
        return self.predicted / self.truth - 1

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a share; infinite without one."""
        interval = self.predicted_ci95
        return math.inf if interval is None else math.sqrt(interval[1] / interval[0]) - 1

    @property
    def is_covered(self) -> bool:
        """Whether the interval contains the truth."""
        interval = self.predicted_ci95
        return interval is not None and interval[0] <= self.truth <= interval[1]


def measure(workload: BenchWorkload) -> Case:
    """Tune a workload, and train whole runs with the result."""
    began = datetime.now(UTC).replace(microsecond=0)
    profile, seconds = tune_profile(workload)
    runs = [train_whole_run(workload, profile.config).extrapolate(workload.epochs) for _ in range(WHOLE_RUNS)]
    case = make_case(workload.name, began, seconds, profile, runs)
    say(
        f"{workload.name:<13} {describe_config(case.config):<32} {seconds:3.0f} s  error {case.error:+6.1%}  "
        f"interval +-{case.half_width:.1%}  {'covered' if case.is_covered else 'MISSED'}"
    )
    return case


def make_case(name: str, date: datetime, seconds: float, profile: TunedProfile, runs: Sequence[float]) -> Case:
    """Sum up a tuning run and the whole runs after it."""
    own = next((one.runs for one in profile.result.candidates if one.config == profile.config), {})
    return Case(
        workload=name,
        date=date,
        seconds=seconds,
        config=profile.config,
        validation_runs=tuple(own.values()),
        predicted=profile.result.samples_per_second,
        predicted_ci95=profile.result.samples_per_second_ci95,
        whole_runs=tuple(runs),
    )


def format_cases(cases: Sequence[Case]) -> str:
    """Return the table by workload, and the coverage of all."""
    rows = list[tuple[str, ...]]()
    for name in dict.fromkeys(case.workload for case in cases):
        found = [case for case in cases if case.workload == name]
        rows.append(
            (
                name,
                f"{sum(case.is_covered for case in found)} of {len(found)}",
                f"{statistics.median(abs(case.error) for case in found):.1%}",
                f"{statistics.fmean(case.error for case in found):+.1%}",
                f"{statistics.median(case.half_width for case in found):.1%}",
                f"{statistics.median(case.seconds for case in found):.0f} s",
            )
        )
    head = ("workload", "covered", "median error", "mean error", "half-width", "tuning")
    covered, errors = sum(case.is_covered for case in cases), sorted(abs(case.error) for case in cases)
    return (
        f"{format_table(head, rows)}\n\n{covered} of {len(cases)} intervals ({covered / len(cases):.0%}) contain the "
        f"whole runs; error {statistics.median(errors):.1%} in the median, {errors[int(0.9 * len(errors))]:.1%} at the "
        f"90th percentile; tuning {statistics.median(case.seconds for case in cases):.0f} s in the median, "
        f"{max(case.seconds for case in cases):.0f} s at most."
    )


def main() -> None:
    """Measure in rounds, store each case, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [workload.name for workload in CPU_WORKLOADS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=5, help="tuning runs of each workload (5)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no tuning run after that time")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given, stored, began = parser.parse_args(), TypeAdapter(tuple[Case, ...]), time.monotonic()
    cases = list(stored.validate_json(given.results.read_bytes())) if given.results.exists() else list[Case]()
    for workload in (one for _ in range(given.rounds) for one in CPU_WORKLOADS if one.name in given.only):
        if time.monotonic() - began > 60 * given.minutes:
            break
        try:
            cases.append(measure(workload))
        except (subprocess.CalledProcessError, TrainingError) as error:
            say(f"{workload.name} failed: {getattr(error, 'stderr', None) or error}")
            continue
        given.results.write_bytes(stored.dump_json(tuple(cases), indent=1))
    print(format_cases(cases))


if __name__ == "__main__":
    main()
