"""What the benchmarks tell their training processes, and what those answer."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from autotune.config import FrozenModel, LoaderConfig


class Workplace(FrozenModel):
    """What a training process gets ready before it is told to go.

    Attributes:
        dataset: Import string of the dataset factory.
        dataset_args: Its arguments.
        step: Import string of the step factory; None sleeps for `step_seconds`.
        step_seconds: Seconds an emulated step takes.
        device: As on the command line: `cuda`, `cpu`, `cuda:1`. None for a step without one, which starts cold.
        batch_size: Samples of the batch that the step is warmed up on.
        in_worker: Whether that batch comes from a worker, so that the process itself has not met the dataset.
    """

    dataset: str
    dataset_args: dict[str, Any]
    step: str | None = None
    step_seconds: float = 0.0
    device: str | None = None
    batch_size: int
    in_worker: bool


class DeviceFacts(FrozenModel):
    """What the runs were made on.

    Attributes:
        name: Model of the device, or of the processor where that is the device.
        torch: Version of torch.
        cuda: Version of CUDA that torch was built for; None for a build without.
        driver: Version of the driver; None where NVML is not at hand.
        pcie: The device's link, as in `gen5 x16`; None likewise.
        python: Version of Python.
    """

    name: str
    torch: str
    cuda: str | None = None
    driver: str | None = None
    pcie: str | None = None
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
    """What a run gave.

    Attributes:
        samples: Samples consumed.
        epoch_seconds: Duration of each epoch, from `iter(loader)` to the end of its last step; the last one is cut
            short where the run was given up.
        given_up: Whether it was.
    """

    samples: int
    epoch_seconds: tuple[float, ...]
    given_up: bool = False

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


class Reading(FrozenModel):
    """What was seen of the device in a run.

    Attributes:
        waited_seconds: Time it waited for data between two steps, on a GPU by events on its stream.
        utilization: Shares of moments in which it computed anything, by NVML, ten a second; empty without NVML.
    """

    waited_seconds: float
    utilization: tuple[float, ...] = ()


class TrainingRun(FrozenModel):
    """A whole run: how long each epoch took, and what was seen of the device."""

    trained: Trained
    reading: Reading
