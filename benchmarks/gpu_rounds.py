"""Screens a grid in one warm training process, and measures entrants in rounds, each time in a fresh one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.knobs import describe_config
from benchmarks.gpu_records import GpuEntrant, GpuRun, Order, Ready, Workplace
from benchmarks.gpu_trainer import Trainee, TrainingError
from benchmarks.gpu_workloads import GpuWorkload
from benchmarks.records import Prediction, Screened, Tuning, merge_labels
from benchmarks.suite import say

SCREEN_EPOCHS: Final = 2
MOST_SCREEN_SECONDS: Final = 3.0  # of the first run of a grid
HOPELESS_FACTOR: Final = 1.5  # times the shortest run of the grid; a slower one is given up
LEAST_SCREEN_SECONDS: Final = 0.5
FINALISTS: Final = 2  # of the grid
MOST_RUN_SECONDS: Final = 4.0  # of a whole run; a slower configuration is trained, and predicted, for fewer epochs
OVERTIME: Final = 1.5  # times that; then the run is given up
ALWAYS_PREDICTED: Final = {"dltune", "grid 1"}  # whose whole runs are predicted, too
FIRST_PREDICTED: Final = {*ALWAYS_PREDICTED, "defaults"}  # in the first round
MOST_FAILURES: Final = 4  # of a grid; then the rest of it is not tried

Start = Callable[[Workplace], Trainee]
Predict = Callable[[LoaderConfig, int], Prediction]


@dataclass(frozen=True)
class Track:
    """One workload on one device, and how it is measured there.

    Attributes:
        workload: The workload.
        device: As on the command line.
        start: Starts a training process.
        predict: Predicts a whole run of a configuration for a number of epochs.
    """

    workload: GpuWorkload
    device: str
    start: Start
    predict: Predict

    def start_for(self, config: LoaderConfig | None) -> Trainee:
        """Start a training process that is to train with a configuration, or with many of a grid."""
        return self.start(
            Workplace(
                dataset=self.workload.dataset,
                dataset_args=self.workload.dataset_args,
                step=self.workload.step,
                device=self.device,
                batch_size=self.workload.batch_size,
                in_worker=config is None or config.dataloader.num_workers > 0,
            )
        )


class Screening:
    """Looks at configurations by one short run each, in a process that is kept while none fails.

    Attributes:
        found: What each lets expect, in the order measured.
        ready: What the first process said when it was ready.
        failed: Configurations that failed, in words.

    Args:
        track: What is trained.
    """

    def __init__(self, track: Track) -> None:
        self._track = track
        self._trainee, self.ready = self._begin()
        self._best_seconds: float | None = None
        self.found: list[Screened] = []
        self.failed: list[str] = []

    def _begin(self) -> tuple[Trainee, Ready]:
        trainee = self._track.start_for(None)
        try:
            return trainee, trainee.await_ready()
        except TrainingError:
            trainee.close()
            raise

    def run(self, configs: Sequence[LoaderConfig]) -> None:
        """Look at configurations, those with a middling number of workers first: so a good one is known early.

        Args:
            configs: The configurations.

        Raises:
            TrainingError: No process can be started any more.
        """
        middle = sorted(config.dataloader.num_workers for config in configs)[len(configs) // 2]
        try:
            for config in sorted(configs, key=lambda config: abs(config.dataloader.num_workers - middle)):
                if len(self.failed) < MOST_FAILURES:
                    self._look_at(config)
        finally:
            self._trainee.close()

    def _look_at(self, config: LoaderConfig) -> None:
        epochs = min(SCREEN_EPOCHS, self._track.workload.epochs)
        try:
            run = self._trainee.train(Order(config=config, epochs=epochs, most_seconds=self._limit_seconds())).trained
        except TrainingError as error:
            say(f"  grid      {describe_config(config)}  failed: {error}")
            self.failed.append(describe_config(config))
            self._trainee.close()
            self._trainee, _ = self._begin()
            return
        if not run.given_up:
            self._best_seconds = min(self._best_seconds or sum(run.epoch_seconds), sum(run.epoch_seconds))
        rate = run.extrapolate(self._track.workload.epochs)
        self.found.append(Screened(config=config, run=run, samples_per_second=rate))
        say(f"  grid      {describe_config(config)}  {rate:,.0f}/s{'  given up' if run.given_up else ''}")

    def _limit_seconds(self) -> float:
        if self._best_seconds is None:
            return MOST_SCREEN_SECONDS
        return max(LEAST_SCREEN_SECONDS, HOPELESS_FACTOR * self._best_seconds)


def pick_entrants(
    workload: GpuWorkload,
    samples: int,
    tunings: Sequence[Tuning],
    grid: Sequence[LoaderConfig],
    seen: Sequence[Screened],
) -> list[GpuEntrant]:
    """Pick what deserves whole runs: what everybody chose, and the best of the grid.

    Args:
        workload: The workload.
        samples: Samples of an epoch.
        tunings: Who chose what.
        grid: The grid.
        seen: What was screened of it, and of the choices.

    Returns:
        The entrants, each with as many epochs as it can be given time for.
    """
    rates = {screened.config: screened.samples_per_second for screened in seen}
    ranked = sorted((config for config in grid if config in rates), key=lambda config: rates[config], reverse=True)
    wanted: list[tuple[str, LoaderConfig]] = [
        (tuning.tuner, tuning.config) for tuning in tunings if tuning.config in rates
    ]
    wanted += [(f"grid {place}", config) for place, config in enumerate(ranked[:FINALISTS], start=1)]
    return [
        GpuEntrant(
            labels=why,
            config=config,
            epochs=plan_epochs(workload.epochs, samples / rates[config]),
            screened=rates[config],
        )
        for config, why in merge_labels(wanted).items()
    ]


def plan_epochs(wanted: int, epoch_seconds: float) -> int:
    """Choose the length of a whole run.

    Args:
        wanted: Epochs it should have.
        epoch_seconds: Seconds that one is expected to take.

    Returns:
        Epochs, at least one.
    """
    return min(wanted, max(1, int(MOST_RUN_SECONDS / epoch_seconds)))


def run_round(track: Track, entrants: Sequence[GpuEntrant], number: int) -> list[GpuEntrant]:
    """Predict and train all entrants in turn; every second round the other way round.

    Args:
        track: What is trained.
        entrants: Who takes part.
        number: Of the round, from 0.

    Returns:
        The entrants with what was measured; whoever failed is no longer among them.
    """
    current = list(entrants)
    for part in (_predict_all, _train_all) if number % 2 else (_train_all, _predict_all):
        current = part(track, current, number)
    return current


def _predict_all(track: Track, entrants: Sequence[GpuEntrant], number: int) -> list[GpuEntrant]:
    wanted = ALWAYS_PREDICTED if number else FIRST_PREDICTED
    return [_predict(track, entrant, number) if wanted & {*entrant.labels} else entrant for entrant in entrants]


def _predict(track: Track, entrant: GpuEntrant, number: int) -> GpuEntrant:
    found = track.predict(entrant.config, entrant.epochs)
    words = found.failure or f"predicted {found.samples_per_second:,.0f}/s"
    say(f"  round {number + 1}   {describe_config(entrant.config)}  {words}  ({', '.join(entrant.labels)})")
    return entrant.model_copy(update={"predictions": (*entrant.predictions, found)})


def _train_all(track: Track, entrants: Sequence[GpuEntrant], number: int) -> list[GpuEntrant]:
    """Have a process for each get ready, all side by side; then let one after the other train, alone."""
    trainees = [track.start_for(entrant.config) for entrant in entrants]
    runs: dict[int, GpuRun] = {}
    try:
        ready = [place for place, trainee in enumerate(trainees) if _is_ready(trainee, entrants[place])]
        shift = number % max(1, len(ready))
        for place in (*ready[shift:], *ready[:shift]):
            run = _train(trainees[place], entrants[place], number)
            trainees[place].close()
            if run is not None:
                runs[place] = run
    finally:
        for trainee in trainees:
            trainee.close()
    return [entrant.add_run(runs[place]) for place, entrant in enumerate(entrants) if place in runs]


def _is_ready(trainee: Trainee, entrant: GpuEntrant) -> bool:
    try:
        trainee.await_ready()
    except TrainingError as error:
        say(f"  {describe_config(entrant.config)} could not get ready: {error}")
        return False
    return True


def _train(trainee: Trainee, entrant: GpuEntrant, number: int) -> GpuRun | None:
    order = Order(config=entrant.config, epochs=entrant.epochs, most_seconds=OVERTIME * MOST_RUN_SECONDS)
    try:
        run = trainee.train(order)
    except TrainingError as error:
        say(f"  {describe_config(entrant.config)} failed: {error}")
        return None
    head = f"  round {number + 1}   {describe_config(entrant.config)}"
    say(f"{head}  {run.trained.samples_per_second:,.0f}/s  ({', '.join(entrant.labels)})")
    return run
