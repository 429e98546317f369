"""Measures choice and prediction in whole training runs.

For each workload dltune chooses a configuration as its users run it. Short training runs screen a grid of
configurations. Then dltune's choice, PyTorch's defaults, `num_workers` = CPUs and the two best of the grid train whole
runs, alternating, each run in a fresh process. Where they scatter, the choice and the two best train further rounds.
Printed are samples per second (median of the rounds), the choice as a share of the grid's best (median ratio of the
rounds), and the prediction over the measured value.

    python -m benchmarks.suite [--only NAME ...] [--tuners loadtune random tpe gp] [--skip-grid] [--results FILE]

`python -m benchmarks.gpu` measures real training steps on a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import truediv
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import Field, TypeAdapter

from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.settings import describe_config
from autotune.system.machine import count_whole_cpus, read_machine
from benchmarks.tables import format_table, say
from benchmarks.training import DeviceFacts, Job, TrainingError, TrainingRun, run_training
from benchmarks.tuners import OTHER_TUNERS, Choice, run_dltune
from benchmarks.workloads.catalogue import CPU_WORKLOADS
from benchmarks.workloads.grid import choose_cpus, choose_defaults, list_grid
from benchmarks.workloads.workload import BenchWorkload

RESULTS: Final = Path("benchmarks/results/suite.json")
FINALISTS: Final = 2  # of the grid
RESOLUTION: Final = 0.01  # standard error of the logarithm of a ratio, above which there are further rounds
SIMULATIONS: Final = 2000
MEDIAN_DEVIATION: Final = 0.70  # of normal values from the median of three, if it is another, in sigmas; 0.67 of many
MAX_FAILURES: Final = 4  # of a grid, before the rest is skipped
DLTUNE: Final = "dltune"
FAILURES: Final = (subprocess.CalledProcessError, TrainingError)

Train = Callable[[Job], TrainingRun]


class Measured(FrozenModel):
    """Whole training runs of one configuration.

    Attributes:
        labels: Who chose it: `dltune`, `defaults`, `CPUs`, `grid 1`, or one of `OTHER_TUNERS`.
        config: The configuration.
        samples_per_second: Throughput of each round.
    """

    labels: tuple[str, ...]
    config: LoaderConfig
    samples_per_second: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Median throughput; 0 without a run."""
        return statistics.median(self.samples_per_second) if self.samples_per_second else 0.0


class WorkloadResult(FrozenModel):
    """What was measured on one workload.

    Attributes:
        workload: Name of the workload.
        date: Start of the measurement, UTC.
        device: What the runs were made on.
        predicted: dltune's prediction, samples per second.
        predicted_ci95: Its 95% interval.
        seconds: Duration of the tuning run.
        phase_seconds: Duration of its phases.
        trials: Trials of its search.
        measured: Whole runs of each configuration.
        seconds_of_others: Duration of the tuning runs of other tuners.
    """

    workload: str
    date: datetime
    device: DeviceFacts
    predicted: float
    predicted_ci95: Interval | None
    seconds: float
    phase_seconds: dict[str, float]
    trials: int
    measured: tuple[Measured, ...]
    seconds_of_others: dict[str, float] = Field(default_factory=dict)

    def rate(self, label: str) -> float | None:
        """Return the median throughput of the configuration with a label; None if it did not train."""
        return next((one.rate for one in self.measured if label in one.labels and one.rate), None)

    @property
    def grid(self) -> tuple[Measured, ...]:
        """The best configurations of the grid."""
        return tuple(one for one in self.measured if any(label.startswith("grid") for label in one.labels))

    def choice_share(self, label: str = DLTUNE) -> float | None:
        """Return the throughput of a choice over that of the grid's best: median ratio of the alternating rounds."""
        chosen = next((one.samples_per_second for one in self.measured if label in one.labels and one.rate), ())
        ratios = [statistics.median(map(truediv, chosen, one.samples_per_second)) for one in self.grid if chosen]
        return min(ratios, default=None)

    @property
    def prediction_ratio(self) -> float | None:
        """The prediction over the measured throughput of dltune's choice."""
        ours = self.rate(DLTUNE)
        return self.predicted / ours if ours else None

    @property
    def is_covered(self) -> bool:
        """Whether the predicted interval covers the measured throughput."""
        ours = self.rate(DLTUNE)
        return self.predicted_ci95 is not None and self.predicted_ci95[0] <= (ours or 0.0) <= self.predicted_ci95[1]


def measure(
    workload: BenchWorkload,
    rounds: int,
    *,
    with_grid: bool = True,
    choose: Iterable[Callable[[BenchWorkload], Choice]] = (run_dltune,),
    train: Train = run_training,
) -> WorkloadResult:
    """Let the tuners choose, screen the grid, and train whole runs, alternating.

    Args:
        workload: The workload.
        rounds: Whole runs of each configuration, at least.
        with_grid: Whether to screen the grid.
        choose: Tuners; dltune comes first.
        train: Trains in a fresh process.

    Raises:
        subprocess.CalledProcessError: A tuner failed.
        TrainingError: A training process failed.
    """
    began, cpus = datetime.now(UTC).replace(microsecond=0), count_whole_cpus(read_machine().usable_cpus)
    choices = []
    for tuner in choose:
        choices.append(tuner(workload))
        say(f"  {choices[-1].tuner:<9} {describe_config(choices[-1].config)}  in {choices[-1].seconds:.0f} s")
    labeled = [(choice.tuner, choice.config) for choice in choices]
    labeled += [("defaults", choose_defaults(workload)), ("CPUs", choose_cpus(workload, cpus))]
    grid = list_grid(workload, cpus) if with_grid else []
    screened = screen(workload, list(dict.fromkeys([*grid, *(config for _, config in labeled)])), train)
    best = sorted((config for config in grid if config in screened), key=lambda one: screened[one], reverse=True)
    labeled += [(f"grid {place}", config) for place, config in enumerate(best[:FINALISTS], start=1)]
    candidates: dict[LoaderConfig, tuple[str, ...]] = {}
    for label, config in labeled:
        if config in screened:
            candidates[config] = (*candidates.get(config, ()), label)
    rates: dict[LoaderConfig, list[float]] = {config: [] for config in candidates}
    device: DeviceFacts | None = None
    compared = [config for config, labels in candidates.items() if any(map(_is_compared, labels))]
    for number in range(workload.pacing.max_rounds_factor * rounds):
        if number >= rounds and is_resolved([rates[config] for config in compared]):
            break
        trained = compared if number >= rounds else [*candidates]
        for config in trained[number % len(trained) :] + trained[: number % len(trained)]:
            run = train_whole_run(workload, config, train)
            device, rate = run.device, run.extrapolate(workload.epochs)
            rates[config].append(rate)
            say(f"  round {number + 1}  {describe_config(config)}  {rate:,.0f}/s  ({', '.join(candidates[config])})")
    assert device is not None, "there is at least one round"
    ours = choices[0]
    return WorkloadResult(
        workload=workload.name,
        date=began,
        device=device,
        predicted=ours.predicted,
        predicted_ci95=ours.predicted_ci95,
        seconds=ours.seconds,
        phase_seconds=ours.phase_seconds,
        trials=ours.trials,
        seconds_of_others={choice.tuner: choice.seconds for choice in choices[1:]},
        measured=tuple(
            Measured(labels=labels, config=config, samples_per_second=tuple(rates[config]))
            for config, labels in candidates.items()
        ),
    )


def _is_compared(label: str) -> bool:
    return label == DLTUNE or label.startswith("grid")


def is_resolved(rates: Sequence[Sequence[float]]) -> bool:
    """Return whether every ratio to the first configuration is known to `RESOLUTION`.

    Args:
        rates: Throughputs of the alternating rounds, of each configuration.
    """
    for others in rates[1:]:
        logs = [math.log(other / one) for one, other in zip(rates[0], others, strict=True)]
        if len(logs) < 2 or statistics.stdev(logs) > RESOLUTION * math.sqrt(len(logs)):
            return False
    return True


def screen(
    workload: BenchWorkload, configs: Sequence[LoaderConfig], train: Train = run_training
) -> dict[LoaderConfig, float]:
    """Train a short run of each configuration; return the samples per second of those that trained."""
    rates: dict[LoaderConfig, float] = {}
    best_seconds: float | None = None
    failures = 0
    middle = sorted(config.dataloader.num_workers for config in configs)[len(configs) // 2]
    for config in sorted(configs, key=lambda config: abs(config.dataloader.num_workers - middle)):
        epochs = min(workload.pacing.screen_epochs, workload.epochs)
        seconds = workload.pacing.screen_seconds(best_seconds)
        try:
            run = train(make_job(workload, config, epochs=epochs, max_seconds=seconds))
        except TrainingError as error:
            say(f"  screened  {describe_config(config)}  failed: {error}")
            failures += 1
            if failures == MAX_FAILURES:
                break
            continue
        rates[config] = run.extrapolate(workload.epochs)
        if not run.given_up:
            best_seconds = min(best_seconds or sum(run.epoch_seconds), sum(run.epoch_seconds))
        say(f"  screened  {describe_config(config)}  {rates[config]:,.0f}/s{'  given up' if run.given_up else ''}")
    return rates


def train_whole_run(workload: BenchWorkload, config: LoaderConfig, train: Train = run_training) -> TrainingRun:
    """Train one whole run in a fresh process; a slow configuration trains fewer epochs."""
    pacing = workload.pacing
    return train(
        make_job(
            workload,
            config,
            epochs=workload.epochs,
            min_epochs=min(pacing.min_epochs, workload.epochs),
            enough_seconds=pacing.run_seconds,
            max_seconds=pacing.give_up_seconds,
        )
    )


def make_job(workload: BenchWorkload, config: LoaderConfig, **limits: Any) -> Job:
    """Return a training run of a workload with a configuration."""
    return Job(
        dataset=workload.dataset,
        dataset_args=workload.dataset_args,
        step=workload.step,
        step_seconds=workload.step_seconds,
        device=workload.device,
        config=config,
        **limits,
    )


def simulate_worst_share(results: Sequence[WorkloadResult]) -> float:
    """Return the median over simulated suites of the worst share, if every choice is as fast as the grid's best."""
    random, worst = Random(0), [math.inf] * SIMULATIONS
    for one in results:
        logs = [[math.log(rate) for rate in found.samples_per_second] for found in one.measured if found.rate]
        errors = [abs(log - statistics.median(runs)) for runs in logs for log in runs if log != statistics.median(runs)]
        sigma = statistics.median(errors) / MEDIAN_DEVIATION if errors else 0.0
        best, rounds = [math.log(found.rate) for found in one.grid if found.rate], max(map(len, logs), default=0)
        for at in range(SIMULATIONS if best else 0):
            ours = [random.gauss(max(best), sigma) for _ in range(rounds)]
            for log in best:
                ratio = statistics.median(mine - random.gauss(log, sigma) for mine in ours)
                worst[at] = min(worst[at], math.exp(ratio))
    return statistics.median(worst)


def format_results(results: Sequence[WorkloadResult]) -> str:
    """Return the table of all workloads and the line that sums it up."""
    rows = []
    for one in results:
        share, ratio = one.choice_share(), one.prediction_ratio
        rates = [*map(one.rate, ("defaults", "CPUs", DLTUNE)), max((found.rate for found in one.grid), default=None)]
        rows.append(
            (
                one.workload,
                *("-" if rate is None else f"{rate:,.0f}" for rate in rates),
                "-" if share is None else f"{share:.1%}",
                "-" if ratio is None else f"{ratio - 1:+.1%}",
                "yes" if one.is_covered else "no",
                f"{one.seconds:.0f} s",
                " ".join(f"{phase} {seconds:.0f}" for phase, seconds in one.phase_seconds.items()),
            )
        )
    head = ("workload", "defaults", "CPUs", "dltune", "grid's best", "choice", "prediction", "covered")
    table = format_table((*head, "tuning", "phases, s"), rows)
    shares = _list_shares(results, DLTUNE)
    errors = sorted(abs(one.prediction_ratio - 1) for one in results if one.prediction_ratio is not None)
    lines = [table, ""]
    if shares:
        lines.append(
            f"Choice: median {statistics.median(shares):.1%} of the grid's best, worst {min(shares):.1%}. "
            f"Perfect choices would have a worst of {simulate_worst_share(results):.1%} by the scatter of these runs."
        )
    if errors:
        covered = sum(one.is_covered for one in results)
        lines.append(
            f"Prediction: median error {statistics.median(errors):.1%}, worst {errors[-1]:.1%}; "
            f"{covered} of {len(results)} intervals cover the measured value."
        )
    seconds = [one.seconds for one in results]
    lines.append(f"Tuning: median {statistics.median(seconds):.0f} s, longest {max(seconds):.0f} s.")
    for tuner in OTHER_TUNERS:
        if others := _list_shares(results, tuner):
            took = statistics.median(one.seconds_of_others[tuner] for one in results if tuner in one.seconds_of_others)
            lines.append(
                f"{tuner}: median {statistics.median(others):.1%} of the grid's best, worst {min(others):.1%}, "
                f"in {took:.0f} s."
            )
    return "\n".join(lines)


def _list_shares(results: Sequence[WorkloadResult], label: str) -> list[float]:
    return [share for one in results if (share := one.choice_share(label)) is not None]


def run(workloads: Sequence[BenchWorkload], results: Path, description: str | None, rounds: int) -> None:
    """Measure the workloads of the command line, store each result, and print the table."""
    names = [workload.name for workload in workloads]
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=rounds, help=f"whole runs of each, at least ({rounds})")
    parser.add_argument("--skip-grid", action="store_true", help="compare with the defaults and CPUs only")
    parser.add_argument("--tuners", nargs="+", choices=OTHER_TUNERS, default=(), help="let these choose as well")
    parser.add_argument("--device", help="device of the training step")
    parser.add_argument("--minutes", type=float, help="start no workload after that time")
    parser.add_argument("--results", type=Path, default=results, help=f"file of the results ({results})")
    parser.add_argument("--quick", action="store_true", help="tiny datasets: a rehearsal, whose numbers say nothing")
    given = parser.parse_args()
    if given.quick:  # in tiny steps, threads that wait for each other on a busy machine take most of the time
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    stored = TypeAdapter(tuple[WorkloadResult, ...])
    found: dict[str, WorkloadResult] = {}
    if given.results.exists():
        found = {one.workload: one for one in stored.validate_json(given.results.read_bytes())}
    tuners = (run_dltune, *(OTHER_TUNERS[name] for name in given.tuners))
    began = time.monotonic()
    for workload in (one for one in workloads if one.name in given.only):
        if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
            say(f"{workload.name}: no time left")
            continue
        say(workload.name)
        chosen = workload.shorten() if given.quick else workload
        chosen = chosen.on_device(given.device) if given.device else chosen
        try:
            found[workload.name] = measure(chosen, given.rounds, with_grid=not given.skip_grid, choose=tuners)
        except FAILURES as error:
            say(f"  failed: {getattr(error, 'stderr', None) or error}")
            continue
        given.results.parent.mkdir(parents=True, exist_ok=True)
        given.results.write_bytes(stored.dump_json(tuple(found.values()), indent=1))
    shown = [found[workload.name] for workload in workloads if workload.name in found]
    if shown:
        print(format_results(shown))


if __name__ == "__main__":
    run(CPU_WORKLOADS, RESULTS, __doc__, rounds=3)
