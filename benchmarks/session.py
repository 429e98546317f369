"""One run of the benchmark: everybody chooses, the grid is screened, and the rounds are run while there is time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from autotune import DltuneError
from autotune.settings import describe_config
from benchmarks.budget import Budget
from benchmarks.progress import say, say_choice
from benchmarks.records import Tuning, WorkloadResult, read_results, save_result
from benchmarks.rounds import run_round
from benchmarks.screening import Predict, Screening, Start, Track, gather_labels, pick_entrants
from benchmarks.training.trainer import Trainer, TrainingError
from benchmarks.tuners import dltune, loadtune
from benchmarks.tuners.random_search import search_at_random
from benchmarks.tuners.trial import predict
from benchmarks.workloads.grid import choose_by_hand, choose_defaults, list_grid
from benchmarks.workloads.workload import BenchWorkload

FAILURES: Final = (subprocess.CalledProcessError, TrainingError, DltuneError)
REHEARSAL_SECONDS: Final = 10.0  # for random search


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured."""

    results: Path
    rounds: int  # of the entrants
    minutes: float | None = None  # for everything; None for as long as it takes
    peers: bool = True  # whether loadtune and random search are run
    grid: bool = True  # else choices are held against siblings, hand and defaults alone
    quick: bool = False  # rehearse only
    again: bool = False  # measure the rounds anew, of choices and grid that were kept


@dataclass(frozen=True, slots=True)
class Instruments:
    """What takes long; a test puts formulas in its place."""

    tune: Callable[[BenchWorkload], Tuning]
    search_at_random: Callable[[BenchWorkload, float], Tuning]
    run_loadtune: Callable[[BenchWorkload], Tuning] | None  # None where it is not installed
    start: Start
    predict: Predict


def make_instruments(*, quick: bool) -> Instruments:
    """Give the real ones."""
    return Instruments(
        tune=dltune.tune,
        search_at_random=search_at_random,
        run_loadtune=partial(loadtune.run_loadtune, quick=quick) if loadtune.is_loadtune_installed() else None,
        start=Trainer,
        predict=predict,
    )


class Session:
    """One run of the benchmark.

    Attributes:
        results: What was measured so far, by workload.
        failed: Names of workloads that failed.
        untried: Names of those for which there was no time at all.
    """

    def __init__(self, options: Options, instruments: Instruments, budget: Budget, cpus: int) -> None:
        self._options = options
        self._instruments = instruments
        self._budget = budget
        self._cpus = cpus
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self.results: dict[str, WorkloadResult] = {}
        self.failed: list[str] = []
        self.untried: list[str] = []

    def run(self, workloads: Sequence[BenchWorkload]) -> None:
        """Measure one workload after the other; where time is short, open all, and then run the first rounds first."""
        batches = [[workload] for workload in workloads] if self._options.minutes is None else [workloads]
        for batch in batches:
            for place, workload in enumerate(batch):
                self._try_to_open(workload, ahead=len(batch) - place - 1)
            opened = [workload for workload in batch if workload.name in self.results]
            for number in range(self._options.rounds):
                for workload in opened:
                    self._try_round(workload, number)

    def _try_to_open(self, workload: BenchWorkload, ahead: int) -> None:
        """Begin with a workload if there is time for it, and for one round of each that has begun."""
        if not self._budget.allows(tuning=1, grid=1, round=len(self.results) + 1):
            say(f"{workload.name}: no time left")
            self.untried.append(workload.name)
            return
        say(workload.name)
        started = time.monotonic()
        try:
            self._keep(self._reopen(workload) or self._open(workload, ahead), started)
        except FAILURES as error:
            say(f"  failed: {explain(error)}")
            self.failed.append(workload.name)

    def _reopen(self, workload: BenchWorkload) -> WorkloadResult | None:
        """Take choices and entrants from an earlier run, where that is wanted and there was one."""
        kept = read_results(self._options.results, (workload.name,)) if self._options.again else []
        if not kept:
            return None
        return kept[0].model_copy(update={"entrants": tuple(entrant.clear() for entrant in kept[0].entrants)})

    def _open(self, workload: BenchWorkload, ahead: int) -> WorkloadResult:
        """Let everybody choose, screen the grid, and pick the entrants."""
        tunings = list(self._run_tuners(workload))
        found, note = self._ask_loadtune(workload, ahead)
        tunings += [found] if found is not None else []
        grid = list_grid(workload, self._cpus) if self._options.grid else []
        screening = Screening(self._make_track(workload))
        with self._budget.timed("grid", workload.name):
            screening.run(list(dict.fromkeys([*grid, *gather_labels(workload, tunings)])))
        ready = screening.ready
        return WorkloadResult(
            workload=workload.name,
            date=self._date,
            cpus=self._cpus,
            torch=version("torch") if workload.device is None else ready.device.torch,
            quick=self._options.quick,
            seconds=0.0,
            tunings=tuple(tunings),
            grid=tuple(screening.found) if grid else (),
            entrants=tuple(pick_entrants(workload, ready.samples, tunings, grid, screening.found)),
            device=None if workload.device is None else ready.device,
            peer_note=note,
            dropped=tuple(f"{config}: failed" for config in screening.failed),
        )

    def _make_track(self, workload: BenchWorkload) -> Track:
        return Track(workload, self._instruments.start, self._instruments.predict)

    def _run_tuners(self, workload: BenchWorkload) -> Iterator[Tuning]:
        """Let dltune choose, then those that need no time, then random search, for which a device leaves none."""
        with self._budget.timed("tuning", workload.name):
            own = self._instruments.tune(workload)
        say_choice(own)
        yield own
        if workload.device is not None or not self._options.grid:
            yield Tuning(tuner="defaults", config=choose_defaults(workload), seconds=0.0)
        yield Tuning(tuner="hand", config=choose_by_hand(workload, self._cpus), seconds=0.0)
        if self._options.peers and workload.device is None:
            seconds = REHEARSAL_SECONDS if self._options.quick else own.seconds
            found = self._instruments.search_at_random(workload, seconds)
            say_choice(found)
            yield found

    def _ask_loadtune(self, workload: BenchWorkload, ahead: int) -> tuple[Tuning | None, str]:
        """Run loadtune if it is wanted, there, and leaves time for all that is more important."""
        if not self._options.peers:
            return None, "loadtune: not asked for"
        if self._instruments.run_loadtune is None:
            return None, loadtune.NOT_INSTALLED
        if self._options.quick and any(result.find_tuning("loadtune") for result in self.results.values()):
            return None, "loadtune: rehearsed once"
        rounds = self._options.rounds * (len(self.results) + 1 + ahead)
        if not self._budget.allows(peer=1, grid=ahead + 1, tuning=ahead, round=rounds):
            return None, "loadtune: no time for it"
        with self._budget.timed("peer", workload.name):
            found = self._instruments.run_loadtune(workload)
        say_choice(found)
        return found, ""

    def _try_round(self, workload: BenchWorkload, number: int) -> None:
        """Run a round of a workload, if there is time."""
        result = self.results[workload.name]
        if self._budget.expect("round", workload.name) > self._budget.left:
            say(f"{workload.name}: no time for round {number + 1}")
            self._keep(result.drop(f"round {number + 1}: no time"))
            return
        say(f"{workload.name}, round {number + 1} of {self._options.rounds}")
        started = time.monotonic()
        try:
            self._keep(self._run_round(workload, number), started)
        except FAILURES as error:
            say(f"  failed: {explain(error)}")
            self.failed.append(workload.name)
            self._keep(result.drop(f"round {number + 1}: failed"), started)

    def _run_round(self, workload: BenchWorkload, number: int) -> WorkloadResult:
        """Run a round of a workload, and note who failed in it."""
        result = self.results[workload.name]
        with self._budget.timed("round", workload.name):
            entrants = run_round(self._make_track(workload), result.entrants, number, self._options.rounds)
        there = {entrant.config for entrant in entrants}
        for entrant in result.entrants:
            if entrant.config not in there:
                result = result.drop(f"{describe_config(entrant.config)}: failed in round {number + 1}")
        return result.model_copy(update={"entrants": tuple(entrants), "rounds": number + 1})

    def _keep(self, result: WorkloadResult, started: float | None = None) -> None:
        """Write down at once what is known: whoever ends a long run should find what it has learned."""
        if started is not None:
            result = result.model_copy(update={"seconds": result.seconds + time.monotonic() - started})
        self.results[result.workload] = result
        save_result(result, self._options.results)


def explain(error: Exception) -> str:
    """Say what went wrong, with the last words of a process that failed."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(map(str, error.cmd))[:200]}\n{error.stderr[-2000:]}"
    return str(error)
