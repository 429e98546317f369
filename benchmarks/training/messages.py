"""What the benchmarks tell their training processes, and what those answer."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from autotune.config import FrozenModel, LoaderConfig


class Workplace(FrozenModel):
    """What a training process gets ready before it is told to go."""

    dataset: str
    dataset_args: dict[str, Any]
    step: str | None = None  # import string; None sleeps for `step_seconds`
    step_seconds: float = 0.0
    device: str | None = None  # as on the command line; None for a step without one, which starts cold
    batch_size: int  # of the batch that the step is warmed up on
    in_worker: bool  # that batch comes from a worker: the process itself has not met the dataset


class DeviceFacts(FrozenModel):
    """What the runs were made on; None for what it does not tell."""

    name: str  # of the processor where that is the device
    torch: str
    cuda: str | None = None
    python: str


class Ready(FrozenModel):
    """What a training process says when it is ready: what it runs on, and the samples of an epoch."""

    device: DeviceFacts
    samples: int


class Order(FrozenModel):
    """A run that a training process is told to make; it is given up after `max_seconds`."""

    config: LoaderConfig
    epochs: int
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run gave."""

    samples: int
    epoch_seconds: tuple[float, ...]  # each from `iter(loader)` to the end of its last step
    given_up: bool = False  # which cut the last epoch short

    @property
    def samples_per_second(self) -> float:
        """Throughput from the first `iter(loader)` to the end of the last epoch."""
        return self.samples / sum(self.epoch_seconds)

    def extrapolate(self, epochs: int) -> float:
        """Give the samples per second of a longer run whose further epochs are like those after the first.

        A run that was given up or had one epoch only is taken as it is.
        """
        if self.given_up or len(self.epoch_seconds) < 2:
            return self.samples_per_second
        later = statistics.fmean(self.epoch_seconds[1:])
        samples = self.samples / len(self.epoch_seconds)
        return epochs * samples / (self.epoch_seconds[0] + (epochs - 1) * later)


class TrainingRun(FrozenModel):
    """A whole run: how long each epoch took, and how long the training loop waited for data."""

    trained: Trained
    waited_seconds: float  # on a GPU by events on its stream
