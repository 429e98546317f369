"""Several training processes on one host: is the choice for all of them better than one process's, or than a rule?

For each workload and number of ranks: dltune tunes with `--ranks`; a grid of workers is trained once by real torchrun
runs; the best three of it, dltune's choice, what dltune chose for one process, and "CPUs / ranks workers" are then
trained in turn.

    python -m benchmarks.ranks [--only NAME ...] [--ranks 2 4] [--rounds 3] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from autotune import TunedProfile
from autotune.config import DataLoaderSettings, FrozenModel, Interval, LoaderConfig
from autotune.settings import describe_config
from autotune.system.machine import read_machine
from benchmarks.analysis.verdicts import format_table
from benchmarks.progress import say
from benchmarks.training.environment import make_environment
from benchmarks.workloads.catalogue import find_workload

RESULTS: Final = Path("benchmarks/results/ranks.json")
SCRIPT: Final = str(Path(__file__).parent / "training" / "ranks_script.py")
WORKERS: Final = {"tutorial": (1, 2, 4, 6, 8, 12), "decode": (0, 1, 2, 3), "reads": (2, 4, 8, 12, 16, 24)}
BATCH: Final = 32
FINALISTS: Final = 3  # of the grid
EPOCHS: Final = 10


class RanksResult(FrozenModel):
    """What was chosen for so many processes, and what whole runs gave, in samples per second of one of them."""

    workload: str
    ranks: int
    promised: float
    predicted_ci95: Interval | None
    tuning_seconds: float
    choices: dict[str, str]  # the configuration of each tuner, in words
    grid: dict[str, float]  # one run each
    runs: dict[str, tuple[float, ...]]  # of each configuration that was trained in turn

    def rate(self, tuner: str) -> float:
        """The median of the runs of what a tuner chose."""
        return median(self.runs[self.choices[tuner]])

    @property
    def best(self) -> float:
        """What the best of the grid reaches in the runs in turn."""
        return max(median(self.runs[name]) for name in self.grid if name in self.runs)

    @property
    def deviation(self) -> float:
        """The promise over the median of the runs, less 1."""
        return self.promised / self.rate("dltune") - 1


def make_config(workers: int) -> LoaderConfig:
    """Make what a careful hand sets for so many workers."""
    extra = {"prefetch_factor": 2, "persistent_workers": True} if workers else {}
    return LoaderConfig(dataloader=DataLoaderSettings(batch_size=BATCH, num_workers=workers, **extra))


def tune(name: str, ranks: int) -> TunedProfile:
    """Have dltune choose for so many processes."""
    workload = find_workload(name)
    options = (
        "--step-time",
        f"{workload.step_seconds}s",
        "--batch-size",
        str(BATCH),
        "--epochs",
        str(EPOCHS),
        "--json",
    )
    command = [sys.executable, "-m", "autotune.cli", "--dataset", workload.dataset, "--ranks", str(ranks), *options]
    with tempfile.TemporaryDirectory() as folder:
        return TunedProfile.model_validate_json(_run(command, folder))


def train(name: str, ranks: int, config: LoaderConfig) -> float:
    """Train once by torchrun, and give the samples per second of one process."""
    workload = find_workload(name)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), SCRIPT]
    what = [workload.dataset, str(workload.step_seconds), str(EPOCHS), config.model_dump_json()]
    with tempfile.TemporaryDirectory() as folder:
        return float(_run([sys.executable, *launcher, *what], folder).split()[-1])


def _run(command: Sequence[str], folder: str) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=make_environment())
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stderr[-2000:]}")
    return finished.stdout


def measure(name: str, ranks: int, alone: LoaderConfig, rounds: int) -> RanksResult:
    """Tune for so many processes, screen the grid, and train the best of it beside what was chosen."""
    started = time.monotonic()
    profile = tune(name, ranks)
    seconds = time.monotonic() - started
    say(f"{name}, {ranks} ranks: {describe_config(profile.config)} in {seconds:.0f} s")
    grid = {config: train(name, ranks, config) for config in map(make_config, WORKERS[name])}
    by_rule = make_config(max(1, int(read_machine().usable_cpus) // ranks))
    choices = {"dltune": profile.config, "one rank's answer": alone, "CPUs / ranks": by_rule}
    best = sorted(grid, key=lambda config: grid[config], reverse=True)[:FINALISTS]
    entrants = list(dict.fromkeys([*choices.values(), *best]))
    runs = _train_in_turn(name, ranks, entrants, rounds)
    found = RanksResult(
        workload=name,
        ranks=ranks,
        promised=profile.result.samples_per_second,
        predicted_ci95=profile.result.samples_per_second_ci95,
        tuning_seconds=seconds,
        choices={tuner: describe_config(config) for tuner, config in choices.items()},
        grid={describe_config(config): rate for config, rate in grid.items()},
        runs={describe_config(config): rates for config, rates in runs.items()},
    )
    say(
        f"{name}, {ranks} ranks: choice {found.rate('dltune') / found.best:.1%}, promise {100 * found.deviation:+.1f} %"
    )
    return found


def _train_in_turn(
    name: str, ranks: int, entrants: Sequence[LoaderConfig], rounds: int
) -> dict[LoaderConfig, tuple[float, ...]]:
    seen: dict[LoaderConfig, list[float]] = {config: [] for config in entrants}
    for number in range(rounds):
        for config in (*entrants[number:], *entrants[:number]):
            seen[config].append(train(name, ranks, config))
    return {config: tuple(rates) for config, rates in seen.items()}


def tabulate(results: Iterable[RanksResult]) -> str:
    """Lay the choices out beside the best of the grid, and the promise beside the runs."""
    rows = []
    for one in results:
        shares = [f"{one.rate(tuner) / one.best:.1%}" for tuner in ("dltune", "one rank's answer", "CPUs / ranks")]
        promise = (f"{one.promised:,.0f}", f"{one.rate('dltune'):,.0f}", f"{100 * one.deviation:+.1f} %")
        rows.append(
            (one.workload, str(one.ranks), one.choices["dltune"], *shares, *promise, f"{one.tuning_seconds:.0f}")
        )
    titles = (
        "workload",
        "ranks",
        "choice",
        "dltune",
        "one rank's",
        "CPUs / ranks",
        "promised",
        "whole runs",
        "off",
        "s",
    )
    return format_table(titles, rows)


def main() -> None:
    """Measure, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKERS, default=tuple(WORKERS), help="workloads (all)")
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4), help="training processes (2 4)")
    parser.add_argument("--rounds", type=int, default=3, help="whole runs of each (3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    given = parser.parse_args()
    results: list[RanksResult] = []
    for name in given.only:
        alone = tune(name, 1).config
        for ranks in given.ranks:
            results.append(measure(name, ranks, alone, given.rounds))
            given.results.write_text(json.dumps([one.model_dump() for one in results], indent=1) + os.linesep)
    print(tabulate(results))


if __name__ == "__main__":
    main()
