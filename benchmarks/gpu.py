"""The same questions as the suite's, on a GPU, with real training steps: in eight minutes at most.

For each workload dltune chooses, then a grid is screened in one warm process; then rounds: what was chosen, the best
of the grid, PyTorch's defaults and a hand setting train in turn, each in a fresh process, and a trial predicts some
of them. What there is no time for is left out and named: last rounds first, then loadtune, then whole workloads. All
four with two rounds may take longer than eight minutes; give more with --minutes, or halves with --only.

    python -m benchmarks.gpu [--only NAME ...] [--minutes 8] [--rounds 2] [--skip-peers] [--device cpu --quick]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from autotune import DltuneError
from autotune.config import LoaderConfig
from autotune.knobs import describe_config
from autotune.system.machine import count_whole_cpus, read_machine
from benchmarks import gpu_report, gpu_tuners
from benchmarks.gpu_budget import Budget
from benchmarks.gpu_records import GpuResult
from benchmarks.gpu_rounds import Screening, Start, Track, pick_entrants, run_round
from benchmarks.gpu_trainer import Trainer, TrainingError
from benchmarks.gpu_workloads import WORKLOADS, GpuWorkload, list_grid, shorten
from benchmarks.peers import make_environment
from benchmarks.records import Prediction, Tuning, save_result
from benchmarks.suite import say

RESULTS: Final = Path("benchmarks/results/gpu")
FAILURES: Final = (subprocess.CalledProcessError, TrainingError, DltuneError)


@dataclass(frozen=True)
class Options:
    """How much is measured.

    Attributes:
        device: As on the command line.
        rounds: Rounds of the entrants.
        minutes: Time allowed for everything.
        peers: Whether loadtune is run.
        quick: Whether to rehearse only.
        results: Where results are written.
    """

    device: str
    rounds: int
    minutes: float
    peers: bool
    quick: bool
    results: Path


@dataclass(frozen=True)
class Instruments:
    """What takes long; a test puts formulas in its place.

    Attributes:
        tune: Runs dltune on a workload.
        run_loadtune: Runs loadtune on a workload; None where it is not installed.
        start: Starts a training process.
        predict: Predicts a whole run of a workload with a configuration for a number of epochs.
    """

    tune: Callable[[GpuWorkload], Tuning]
    run_loadtune: Callable[[GpuWorkload], Tuning] | None
    start: Start
    predict: Callable[[GpuWorkload, LoaderConfig, int], Prediction]

    def make_track(self, workload: GpuWorkload, device: str) -> Track:
        """Give what the rounds of a workload need."""
        return Track(workload, device, self.start, partial(self.predict, workload))


def make_instruments(options: Options) -> Instruments:
    """Give the real ones."""

    def predict(workload: GpuWorkload, config: LoaderConfig, epochs: int) -> Prediction:
        return gpu_tuners.predict(workload, options.device, config, epochs, quick=options.quick)

    run_loadtune = partial(gpu_tuners.run_loadtune, quick=options.quick)
    return Instruments(
        tune=partial(gpu_tuners.tune, device=options.device, quick=options.quick),
        run_loadtune=run_loadtune if gpu_tuners.is_loadtune_installed() else None,
        start=Trainer,
        predict=predict,
    )


class Session:
    """One run of the benchmark.

    Attributes:
        results: What was measured so far, by workload.
        failed: Names of workloads that failed.
        untried: Names of those for which there was no time at all.

    Args:
        options: How much is measured.
        instruments: What takes long.
        budget: The time there is.
        cpus: CPUs that may be used.
    """

    def __init__(self, options: Options, instruments: Instruments, budget: Budget, cpus: int) -> None:
        self._options = options
        self._instruments = instruments
        self._budget = budget
        self._cpus = cpus
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self.results: dict[str, GpuResult] = {}
        self.failed: list[str] = []
        self.untried: list[str] = []

    def run(self, workloads: Sequence[GpuWorkload]) -> None:
        """Let everybody choose on all workloads; then run the rounds, the first of all workloads first."""
        for place, workload in enumerate(workloads):
            self._try_to_open(workload, ahead=len(workloads) - place - 1)
        opened = [workload for workload in workloads if workload.name in self.results]
        for number in range(self._options.rounds):
            for workload in opened:
                self._try_round(workload, number)

    def _try_to_open(self, workload: GpuWorkload, ahead: int) -> None:
        """Begin with a workload if there is time for it, and for one round of each that has begun."""
        if not self._budget.allows(tuning=1, grid=1, round=len(self.results) + 1):
            say(f"{workload.name}: no time left")
            self.untried.append(workload.name)
            return
        say(workload.name)
        started = time.monotonic()
        try:
            self._keep(self._open(workload, ahead), started)
        except FAILURES as error:
            say(f"  failed: {explain(error)}")
            self.failed.append(workload.name)

    def _open(self, workload: GpuWorkload, ahead: int) -> GpuResult:
        """Let everybody choose, screen the grid, and pick the entrants."""
        with self._budget.timed("tuning", workload.name):
            tunings = [self._instruments.tune(workload), *gpu_tuners.list_untuned(workload, self._cpus)]
        _say_choice(tunings[0])
        found, note = self._ask_loadtune(workload, ahead)
        tunings += [found] if found is not None else []
        grid = list_grid(workload, self._cpus, quick=self._options.quick)
        with self._budget.timed("grid", workload.name):
            screening = Screening(self._instruments.make_track(workload, self._options.device))
            screening.run(list(dict.fromkeys([*grid, *(tuning.config for tuning in tunings)])))
        ready = screening.ready
        return GpuResult(
            workload=workload.name,
            date=self._date,
            cpus=self._cpus,
            torch=ready.device.torch,
            quick=self._options.quick,
            seconds=0.0,
            tunings=tuple(tunings),
            grid=tuple(screening.found),
            entrants=tuple(pick_entrants(workload, ready.samples, tunings, grid, screening.found)),
            device=ready.device,
            peer_note=note,
            dropped=tuple(f"{config}: failed" for config in screening.failed),
        )

    def _ask_loadtune(self, workload: GpuWorkload, ahead: int) -> tuple[Tuning | None, str]:
        """Run loadtune if it is wanted, there, and leaves time for all that is more important."""
        if not self._options.peers:
            return None, "loadtune: not asked for"
        if self._instruments.run_loadtune is None:
            return None, gpu_tuners.NOT_INSTALLED
        if self._options.quick and any(result.find_tuning("loadtune") for result in self.results.values()):
            return None, "loadtune: rehearsed once"
        rounds = self._options.rounds * (len(self.results) + 1 + ahead)
        if not self._budget.allows(peer=1, grid=ahead + 1, tuning=ahead, round=rounds):
            return None, "loadtune: no time for it"
        with self._budget.timed("peer", workload.name):
            found = self._instruments.run_loadtune(workload)
        _say_choice(found)
        return found, ""

    def _try_round(self, workload: GpuWorkload, number: int) -> None:
        """Run a round of a workload, if there is time."""
        result = self.results[workload.name]
        if self._budget.expect("round", workload.name) > self._budget.left:
            say(f"{workload.name}: no time for round {number + 1}")
            self._keep(add_dropped(result, f"round {number + 1}: no time"))
            return
        say(f"{workload.name}, round {number + 1} of {self._options.rounds}")
        started = time.monotonic()
        try:
            self._keep(self._run_round(workload, number), started)
        except FAILURES as error:
            say(f"  failed: {explain(error)}")
            self.failed.append(workload.name)
            self._keep(add_dropped(result, f"round {number + 1}: failed"), started)

    def _run_round(self, workload: GpuWorkload, number: int) -> GpuResult:
        """Run a round of a workload, and note who failed in it."""
        result = self.results[workload.name]
        track = self._instruments.make_track(workload, self._options.device)
        with self._budget.timed("round", workload.name):
            entrants = run_round(track, result.entrants, number)
        there = {entrant.config for entrant in entrants}
        for entrant in result.entrants:
            if entrant.config not in there:
                result = add_dropped(result, f"{describe_config(entrant.config)}: failed in round {number + 1}")
        return result.model_copy(update={"entrants": tuple(entrants), "rounds": number + 1})

    def _keep(self, result: GpuResult, started: float | None = None) -> None:
        """Write down at once what is known: whoever ends a long run should find what it has learned."""
        if started is not None:
            result = result.model_copy(update={"seconds": result.seconds + time.monotonic() - started})
        self.results[result.workload] = result
        save_result(result, self._options.results)


def add_dropped(result: GpuResult, what: str) -> GpuResult:
    """Note what has no result."""
    return result.model_copy(update={"dropped": (*result.dropped, what)})


def explain(error: Exception) -> str:
    """Say what went wrong, with the last words of a process that failed."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(map(str, error.cmd))[:200]}\n{error.stderr[-2000:]}"
    return str(error)


def _say_choice(tuning: Tuning) -> None:
    say(f"  {tuning.tuner:<9} {describe_config(tuning.config)}  in {tuning.seconds:.0f} s  ({tuning.note})")


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Options, list[GpuWorkload]]:
    """Read the command line.

    Args:
        arguments: What was typed; None takes the process's own.

    Returns:
        How much is measured, and on what.
    """
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--device", default="cuda", help="where the steps run (cuda)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time allowed for everything (8)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of the entrants (2)")
    parser.add_argument("--results", type=Path, help=f"folder of the results ({RESULTS})")
    parser.add_argument("--skip-peers", action="store_true", help="do not run loadtune")
    parser.add_argument("--quick", action="store_true", help="rehearse: tiny sizes, one round, kept elsewhere")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.minutes <= 0:
        parser.error("--rounds and --minutes: more than nothing")
    elsewhere = Path(tempfile.gettempdir()) / "dltune-bench-gpu-quick"
    options = Options(
        device=given.device,
        rounds=1 if given.quick else given.rounds,
        minutes=given.minutes,
        peers=not given.skip_peers,
        quick=given.quick,
        results=given.results or (elsewhere if given.quick else RESULTS),
    )
    chosen = [workload for workload in WORKLOADS if workload.name in given.only]
    return options, [shorten(workload) if given.quick else workload for workload in chosen]


def main() -> None:
    """Measure, keep what was measured, print the tables."""
    options, workloads = parse_arguments()
    os.environ["PYTHONPATH"] = make_environment()["PYTHONPATH"]  # for the trials: this project may not be installed
    if options.quick:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other on a busy machine take minutes
    cpus = count_whole_cpus(read_machine().usable_cpus)
    session = Session(options, make_instruments(options), Budget(60 * options.minutes), cpus)
    session.run(workloads)
    gpu_report.publish(options.results)
    if session.untried:
        print(f"\nNo time for: {', '.join(session.untried)}")
    if session.failed:
        sys.exit(f"failed: {', '.join(dict.fromkeys(session.failed))}")


if __name__ == "__main__":
    main()
