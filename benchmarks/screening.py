"""Which configurations deserve whole runs? Each is looked at by one short run, and the best of the grid are picked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.settings import describe_config
from benchmarks.progress import say
from benchmarks.records import Entrant, Prediction, Screened, Tuning
from benchmarks.training.messages import Order, Ready, Workplace
from benchmarks.training.trainer import Trainee, TrainingError
from benchmarks.workloads.grid import default_variant, list_spread
from benchmarks.workloads.workload import BenchWorkload

EARLY_SECONDS: Final = 30.0  # after which a good configuration should be known
FINALISTS: Final = 2  # of the grid
MAX_FAILURES: Final = 4  # of a grid; then the rest of it is not tried

Start = Callable[[Workplace], Trainee]
Predict = Callable[[BenchWorkload, LoaderConfig, int], Prediction]


@dataclass(frozen=True, slots=True)
class Track:
    """One workload, and how it is measured."""

    workload: BenchWorkload
    start: Start  # a training process
    predict: Predict  # a whole run of a configuration for a number of epochs

    def start_for(self, config: LoaderConfig | None) -> Trainee:
        """Start a training process that is to train with a configuration, or with many of a grid."""
        workload = self.workload
        return self.start(
            Workplace(
                dataset=workload.dataset,
                dataset_args=workload.dataset_args,
                step=workload.step,
                step_seconds=workload.step_seconds,
                device=workload.device,
                batch_size=workload.batch_size,
                in_worker=config is None or config.dataloader.num_workers > 0,
            )
        )


class Screening:
    """Looks at configurations, each in a fresh process; on a device in one that is kept while none fails.

    Attributes:
        found: What each lets expect, in the order measured.
        failed: Configurations that failed, in words.
    """

    def __init__(self, track: Track) -> None:
        self._track = track
        self._trainee: Trainee | None = None
        self._ready: Ready | None = None
        self._best_seconds: float | None = None
        self.found: list[Screened] = []
        self.failed: list[str] = []

    @property
    def ready(self) -> Ready:
        """What the processes said when they were ready."""
        assert self._ready is not None
        return self._ready

    def run(self, configs: Sequence[LoaderConfig]) -> None:
        """Look at configurations, those with a middling number of workers first: so a good one is known early.

        Raises:
            TrainingError: No process can be started any more.
        """
        middle = sorted(config.dataloader.num_workers for config in configs)[len(configs) // 2]
        try:
            for config in sorted(configs, key=lambda config: abs(config.dataloader.num_workers - middle)):
                if len(self.failed) < MAX_FAILURES:
                    self._look_at(config)
        finally:
            self._close()

    def _look_at(self, config: LoaderConfig) -> None:
        trainee = self._trainee or self._begin(config)
        workload = self._track.workload
        epochs = min(workload.pacing.screen_epochs, workload.epochs)
        order = Order(config=config, epochs=epochs, max_seconds=workload.pacing.screen_seconds(self._best_seconds))
        try:
            run = trainee.train(order).trained
        except TrainingError as error:
            say(f"  grid      {describe_config(config)}  failed: {error}")
            self.failed.append(describe_config(config))
            self._close()
            return
        if workload.device is None:
            self._close()
        if not run.given_up:
            self._best_seconds = min(self._best_seconds or sum(run.epoch_seconds), sum(run.epoch_seconds))
        rate = run.extrapolate(workload.epochs)
        self.found.append(Screened(config=config, run=run, samples_per_second=rate))
        say(f"  grid      {describe_config(config)}  {rate:,.0f}/s{'  given up' if run.given_up else ''}")

    def _begin(self, config: LoaderConfig) -> Trainee:
        self._trainee = self._track.start_for(None if self._track.workload.device else config)
        self._ready = self._trainee.await_ready()
        return self._trainee

    def _close(self) -> None:
        if self._trainee is not None:
            self._trainee.close()
            self._trainee = None


def pick_entrants(
    workload: BenchWorkload,
    samples: int,
    tunings: Sequence[Tuning],
    grid: Sequence[LoaderConfig],
    seen: Sequence[Screened],
) -> list[Entrant]:
    """Pick what deserves whole runs: what everybody chose, and the best of the grid.

    Args:
        workload: The workload.
        samples: Samples of an epoch.
        tunings: Who chose what.
        grid: The grid.
        seen: What was screened of it, and of the choices.

    Returns:
        Those that are not too slow, each with as many epochs as it can be given time for.
    """
    rates = {screened.config: screened.samples_per_second for screened in seen}
    ranked = sorted((config for config in grid if config in rates), key=lambda config: rates[config], reverse=True)
    entrants = []
    for config, labels in gather_labels(workload, tunings, ranked[:FINALISTS]).items():
        if config not in rates:
            continue
        epochs = workload.pacing.plan_epochs(workload.epochs, samples / rates[config])
        if epochs is None:
            say(f"  left out  {describe_config(config)}  {rates[config]:,.0f}/s ({', '.join(labels)})")
        else:
            entrants.append(Entrant(labels=labels, config=config, epochs=epochs, screened=rates[config]))
    return entrants


def gather_labels(
    workload: BenchWorkload, tunings: Sequence[Tuning], finalists: Sequence[LoaderConfig] = ()
) -> dict[LoaderConfig, tuple[str, ...]]:
    """Name the configurations that are wanted, each once with every reason why."""
    wanted = [(tuning.tuner, tuning.config) for tuning in tunings]
    numbered = [(f"grid {place}", config) for place, config in enumerate(finalists, start=1)]
    labels: dict[LoaderConfig, tuple[str, ...]] = {}
    for label, config in (*wanted, *numbered, *_list_extras(workload, tunings)):
        labels[config] = (*labels.get(config, ()), label)
    return labels


def _list_extras(workload: BenchWorkload, tunings: Sequence[Tuning]) -> Iterable[tuple[str, LoaderConfig]]:
    """List what else tells something of dltune; on a device there is no time for it."""
    if workload.device is not None:
        return
    for tuning in tunings:
        if tuning.tuner == "dltune":
            early, last = tuning.best_after(EARLY_SECONDS), tuning.best_after(tuning.seconds)
            yield from ((label, config) for label, config in (("early", early), ("search", last)) if config is not None)
            yield "sibling", default_variant(tuning.config)
    yield from (("spread", config) for config in list_spread(workload))
