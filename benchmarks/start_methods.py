"""Does the promise hold where workers are not forked? Tuned with and without `--main`, beside `python script.py`.

The script imports for two seconds (`benchmarks/training/script.py`), which every worker pays for that is not forked.

    python -m benchmarks.start_methods [--only METHOD ...] [--rounds 3] [--results FILE]
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
from statistics import median
from typing import Final

from autotune import TunedProfile
from autotune.config import FrozenModel, Interval
from autotune.settings import describe_config
from benchmarks.analysis.verdicts import format_table
from benchmarks.progress import say
from benchmarks.training.environment import make_environment

RESULTS: Final = Path("benchmarks/results/start_methods.json")
SCRIPT: Final = str(Path(__file__).parent / "training" / "script.py")
DATASET: Final = "benchmarks.workloads.reads:make_reads"
METHODS: Final = ("spawn", "forkserver", "fork")
EPOCHS: Final = "2"
OPTIONS: Final = ("--step-time", "3ms", "--batch-size", "32", "--epochs", EPOCHS, "--max-workers", "4")


class MethodResult(FrozenModel):
    """What was promised, and what whole runs of the script gave, in samples per second."""

    method: str
    main: bool  # whether the script was named
    choice: str
    promised: float
    predicted_ci95: Interval | None
    tuning_seconds: float
    runs: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """The promise over the median of the runs, less 1."""
        return self.promised / median(self.runs) - 1


def measure(method: str, rounds: int, *, names_main: bool) -> MethodResult:
    """Tune, and train by the script as tuned."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        command = [sys.executable, "-m", "autotune.cli", "--dataset", DATASET, "--start-method", method]
        main = ["--main", SCRIPT] if names_main else []
        profile = TunedProfile.model_validate_json(_run([*command, *main, *OPTIONS, "--json"], folder))
        seconds = time.monotonic() - started
        train = [sys.executable, SCRIPT, EPOCHS, method, "dltune.json"]
        runs = tuple(float(_run(train, folder).split()[-1]) for _ in range(rounds))
    found = MethodResult(
        method=method,
        main=names_main,
        choice=describe_config(profile.config),
        promised=profile.result.samples_per_second,
        predicted_ci95=profile.result.samples_per_second_ci95,
        tuning_seconds=seconds,
        runs=runs,
    )
    say(f"{method}, {'--main' if names_main else 'no --main'}: {100 * found.deviation:+.1f} %, {found.choice}")
    return found


def _run(command: Sequence[str], folder: str) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=make_environment())
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    return finished.stdout


def tabulate(results: Sequence[MethodResult]) -> str:
    """Lay promises out beside the runs."""
    rows = [
        (
            one.method,
            "script.py" if one.main else "-",
            one.choice,
            f"{one.promised:,.0f}",
            f"{median(one.runs):,.0f}",
            f"{100 * one.deviation:+.1f} %",
            f"{one.tuning_seconds:.0f}",
        )
        for one in results
    ]
    return format_table(("method", "--main", "choice", "promised", "whole runs", "off", "seconds"), rows)


def main() -> None:
    """Measure, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, help="start methods (all)")
    parser.add_argument("--rounds", type=int, default=3, help="whole runs (3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    cases = [(method, names_main) for method in given.only for names_main in (False, True)]
    results = [measure(method, given.rounds, names_main=names_main) for method, names_main in cases]
    given.results.write_text(json.dumps([one.model_dump() for one in results], indent=1) + os.linesep)
    print(tabulate(results))


if __name__ == "__main__":
    main()
