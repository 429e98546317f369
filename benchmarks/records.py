"""What is written down of a workload: everything raw, so that a table can be questioned later."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from autotune.config import FrozenModel, Interval, LoaderConfig
from benchmarks.training.messages import DeviceFacts, Reading, Trained, TrainingRun

TunerName = Literal["dltune", "random", "loadtune", "hand", "defaults"]


class Line(FrozenModel):
    """One trial of a tuner, as it stands in the tuner's own record.

    Attributes:
        config: What was tried.
        fate: `measured`, `skipped` or `repeated`.
        completed: Whether it was measured to its end.
        score: Samples per second that the tuner credits it with.
        finished_seconds: When it was written down, in seconds since the tuner was started.
        trial_seconds: Wall time of the trial.
        timed_seconds: Part of that which was measured: worker start, epochs and their ends.
    """

    config: LoaderConfig
    fate: str
    completed: bool
    score: float
    finished_seconds: float
    trial_seconds: float
    timed_seconds: float


class Tuning(FrozenModel):
    """One run of a tuner, or what a hand sets without one.

    Attributes:
        tuner: Who it was.
        config: What it chose.
        seconds: Wall time until the answer.
        promise: Samples per second it predicts for that; None when it predicts nothing.
        interval: 95 % interval of the prediction.
        lines: Its trials, in order, where they can be read.
        note: What else there is to say.
    """

    tuner: TunerName
    config: LoaderConfig
    seconds: float
    promise: float | None = None
    interval: Interval | None = None
    lines: tuple[Line, ...] = ()
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
    """One fresh trial, as the confirmation makes it.

    Attributes:
        samples_per_second: Throughput it predicts for a whole run.
        relative_error: Half-width of its own 95 % interval as a share; None when it is not known.
        seconds: Wall time of the trial.
        stopped: Why it ended.
        epoch_seconds: Duration of each epoch it saw.
        epoch_batches: Batches it saw of each.
        failure: What went wrong; empty when nothing did.
    """

    samples_per_second: float = 0.0
    relative_error: float | None = None
    seconds: float
    stopped: str = ""
    epoch_seconds: tuple[float, ...] = ()
    epoch_batches: tuple[int, ...] = ()
    failure: str = ""


class Entrant(FrozenModel):
    """A configuration in the rounds: predicted and trained, in turn with all others.

    Attributes:
        labels: Why it is there.
        config: The configuration.
        epochs: Length of its whole runs, and of the run that is predicted; shorter where it is slow.
        screened: What a short run let expect, in samples per second.
        predictions: One a round, or fewer.
        runs: One a round.
        readings: What was seen of the device, one a run; none in older records.
    """

    labels: tuple[str, ...]
    config: LoaderConfig
    epochs: int
    screened: float
    predictions: tuple[Prediction, ...] = ()
    runs: tuple[Trained, ...] = ()
    readings: tuple[Reading, ...] = ()

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
    """All that was measured of one workload in one run of the benchmark.

    Attributes:
        workload: Its name.
        date: When the benchmark began, ISO 8601 in UTC.
        cpus: CPUs that may be used.
        torch: Version of torch.
        quick: Whether it was a rehearsal whose numbers say nothing.
        seconds: How long it took.
        tunings: Who chose what.
        grid: What was screened, in the order it was measured; nothing where no grid was looked at.
        entrants: The rounds.
        device: What a step on a device was measured on; None for the other steps.
        rounds: Rounds that were run; 0 in older records.
        peer_note: Why loadtune has no result; empty where it has one.
        dropped: What there was no time for, or what failed.
    """

    workload: str
    date: str
    cpus: int
    torch: str
    quick: bool
    seconds: float
    tunings: tuple[Tuning, ...]
    grid: tuple[Screened, ...]
    entrants: tuple[Entrant, ...]
    device: DeviceFacts | None = None
    rounds: int = 0
    peer_note: str = ""
    dropped: tuple[str, ...] = ()

    def find_tuning(self, tuner: TunerName) -> Tuning | None:
        """Give the run of a tuner; None when there was none."""
        return next((tuning for tuning in self.tunings if tuning.tuner == tuner), None)

    def find_entrant(self, label: str) -> Entrant | None:
        """Give the entrant that carries a label; None when there is none with whole runs."""
        return next((entrant for entrant in self.entrants if label in entrant.labels and entrant.runs), None)

    def drop(self, what: str) -> WorkloadResult:
        """Note what has no result."""
        return self.model_copy(update={"dropped": (*self.dropped, what)})


def list_own_costs(lines: Sequence[Line]) -> list[tuple[float, float]]:
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


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place and put it there at once, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    Path(beside).chmod(0o644)
    Path(beside).replace(path)


def save_result(result: WorkloadResult, folder: Path) -> None:
    """Write the result of a workload, in the place of an earlier one."""
    write_text(folder / f"{result.workload}.json", result.model_dump_json(indent=1) + "\n")


def read_results(folder: Path, names: Iterable[str]) -> list[WorkloadResult]:
    """Read the results of workloads; a file that is not there or of another format is passed over."""
    found = []
    for name in names:
        try:
            found.append(WorkloadResult.model_validate_json((folder / f"{name}.json").read_text()))
        except (FileNotFoundError, ValidationError):
            continue
    return found
