"""What is written down of a workload: everything raw, so that a table can be questioned later."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from autotune.profiles.search_record import PhaseTime
from pydantic import ValidationError

from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.profiles.store import write_atomically
from benchmarks.training.messages import DeviceFacts, Reading, Trained, TrainingRun

TunerName = Literal["dltune", "random", "loadtune", "hand", "defaults"]


class TunerTrial(FrozenModel):
    """One trial of a tuner, as it stands in the tuner's own record."""

    config: LoaderConfig
    status: str  # `measured`, `skipped` or `repeated`
    completed: bool
    score: float  # samples per second that the tuner credits it with
    finished_seconds: float  # when it was written down, since the tuner was started
    trial_seconds: float
    timed_seconds: float  # of the trial: worker start, epochs and their ends


class Tuning(FrozenModel):
    """One run of a tuner, or what a hand sets without one."""

    tuner: TunerName
    config: LoaderConfig
    seconds: float
    promise: float | None = None  # samples per second it predicts for its choice
    interval: Interval | None = None
    lines: tuple[TunerTrial, ...] = ()  # its trials, in order, where they can be read
    time_spent: tuple[PhaseTime, ...] = ()  # where its seconds went, where it says so
    note: str = ""

    def best_after(self, seconds: float) -> LoaderConfig | None:
        """Give the best configuration it knew so many seconds after its start; None when there was none yet."""
        known = [line for line in self.lines if line.completed and line.finished_seconds <= seconds]
        return max(known, key=lambda line: line.score).config if known else None


class Screened(FrozenModel):
    """A configuration that was looked at by one short run, and what that lets expect of a whole one."""

    config: LoaderConfig
    run: Trained
    samples_per_second: float


class Prediction(FrozenModel):
    """One fresh trial, as the confirmation makes it; `failure` says what went wrong, where something did."""

    samples_per_second: float = 0.0
    relative_error: float | None = None  # half-width of its own 95 % interval
    seconds: float
    stopped: str = ""
    epoch_seconds: tuple[float, ...] = ()
    epoch_batches: tuple[int, ...] = ()
    failure: str = ""


class Entrant(FrozenModel):
    """A configuration in the rounds: predicted and trained, in turn with all others."""

    labels: tuple[str, ...]  # why it is there
    config: LoaderConfig
    epochs: int  # of its whole runs, and of the run that is predicted; fewer where it is slow
    screened: float  # samples per second, as a short run let expect
    predictions: tuple[Prediction, ...] = ()  # one a round, or fewer
    runs: tuple[Trained, ...] = ()  # one a round
    readings: tuple[Reading, ...] = ()  # one a run; none in older records

    @property
    def rates(self) -> list[float]:
        """Samples per second of the whole runs, one a round."""
        return [run.samples_per_second for run in self.runs]

    @property
    def predicted_rates(self) -> list[float]:
        """Samples per second of the predictions, one a round; empty when one of them failed."""
        if any(prediction.failure for prediction in self.predictions):
            return []
        return [prediction.samples_per_second for prediction in self.predictions]

    @property
    def busy_share(self) -> float:
        """Share of the time in which the device did not wait for data, median of the runs."""
        pairs = zip(self.readings, self.runs, strict=True)
        return statistics.median(1 - reading.waited_seconds / sum(run.epoch_seconds) for reading, run in pairs)

    @property
    def utilization(self) -> float | None:
        """Mean of what NVML said in all runs; None where it said nothing."""
        said = [share for reading in self.readings for share in reading.utilization]
        return statistics.fmean(said) if said else None

    def add_prediction(self, prediction: Prediction) -> Entrant:
        """Give the entrant with one more prediction."""
        return self.model_copy(update={"predictions": (*self.predictions, prediction)})

    def add_run(self, run: TrainingRun) -> Entrant:
        """Give the entrant with one more run."""
        changes = {"runs": (*self.runs, run.trained), "readings": (*self.readings, run.reading)}
        return self.model_copy(update=changes)

    def clear(self) -> Entrant:
        """Give the entrant as it was before the rounds."""
        return self.model_copy(update={"predictions": (), "runs": (), "readings": ()})


class WorkloadResult(FrozenModel):
    """All that was measured of one workload in one run of the benchmark."""

    workload: str
    date: str  # when the benchmark began, ISO 8601 in UTC
    cpus: int
    torch: str
    quick: bool  # a rehearsal, whose numbers say nothing
    seconds: float
    tunings: tuple[Tuning, ...]
    grid: tuple[Screened, ...]  # and the choices, as they were measured; nothing where no grid was looked at
    entrants: tuple[Entrant, ...]
    device: DeviceFacts | None = None  # None where the step has no device
    rounds: int = 0  # 0 in older records
    peer_note: str = ""  # why loadtune has no result
    dropped: tuple[str, ...] = ()  # what there was no time for, or what failed

    def find_tuning(self, tuner: TunerName) -> Tuning | None:
        """Give the run of a tuner; None when there was none."""
        return next((tuning for tuning in self.tunings if tuning.tuner == tuner), None)

    def find_entrant(self, label: str) -> Entrant | None:
        """Give the entrant that carries a label; None when there is none with whole runs."""
        return next((entrant for entrant in self.entrants if label in entrant.labels and entrant.runs), None)

    def drop(self, what: str) -> WorkloadResult:
        """Note what has no result."""
        return self.model_copy(update={"dropped": (*self.dropped, what)})


def list_own_costs(lines: Sequence[TunerTrial]) -> list[tuple[float, float]]:
    """List what the tuner itself cost for each trial after the first.

    Args:
        lines: Its trials, in order.

    Returns:
        For each trial that completed after one that did: seconds since the line before less what was timed, and the
        part of them that passed inside the trial. A trial after a failure starts a new process and is left out.
    """
    costs = []
    for before, line in pairwise(lines):
        if before.completed and line.completed:
            own = line.finished_seconds - before.finished_seconds - line.timed_seconds
            costs.append((own, line.trial_seconds - line.timed_seconds))
    return costs


def save_result(result: WorkloadResult, folder: Path) -> None:
    """Write the result of a workload, in the place of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{result.workload}.json", result.model_dump_json(indent=1) + "\n")


def read_results(folder: Path, names: Iterable[str]) -> list[WorkloadResult]:
    """Read the results of workloads; a file that is not there or of another format is passed over."""
    found = []
    for name in names:
        try:
            found.append(WorkloadResult.model_validate_json((folder / f"{name}.json").read_text()))
        except (FileNotFoundError, ValidationError):
            continue
    return found
