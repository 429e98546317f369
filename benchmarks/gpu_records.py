"""What the GPU benchmark tells its training processes, what they answer, and what is written down."""

from __future__ import annotations

import statistics
from typing import Any

from autotune.config import FrozenModel, LoaderConfig
from benchmarks.records import Entrant, WorkloadResult
from benchmarks.whole_run import Trained


class Workplace(FrozenModel):
    """What a training process gets ready before it is told to go.

    Attributes:
        dataset: Import string of the dataset factory.
        dataset_args: Its arguments.
        step: Import string of the step factory.
        device: As on the command line: `cuda`, `cpu`, `cuda:1`.
        batch_size: Samples of the batch that the step is warmed up on.
        in_worker: Whether that batch comes from a worker, so that the process itself has not met the dataset.
    """

    dataset: str
    dataset_args: dict[str, Any]
    step: str
    device: str
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
    """What a training process says when it is ready.

    Attributes:
        device: What it runs on.
        samples: Samples of an epoch.
    """

    device: DeviceFacts
    samples: int


class Order(FrozenModel):
    """A run that a training process is told to make.

    Attributes:
        config: The configuration.
        epochs: How long.
        most_seconds: Seconds after which the run is given up; None for never.
    """

    config: LoaderConfig
    epochs: int
    most_seconds: float | None = None


class Reading(FrozenModel):
    """What was seen of the device in a run.

    Attributes:
        waited_seconds: Time it waited for data between two steps, by events on its stream.
        utilization: Shares of moments in which it computed anything, by NVML, ten a second; empty without NVML.
    """

    waited_seconds: float
    utilization: tuple[float, ...] = ()


class GpuRun(FrozenModel):
    """A whole run: how long each epoch took, and what was seen of the device."""

    trained: Trained
    reading: Reading


class GpuEntrant(Entrant):
    """A configuration in the rounds.

    Attributes:
        readings: What was seen of the device, one a run.
    """

    readings: tuple[Reading, ...] = ()

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

    def add_run(self, run: GpuRun) -> GpuEntrant:
        """Give the entrant with one more run."""
        changes = {"runs": (*self.runs, run.trained), "readings": (*self.readings, run.reading)}
        return self.model_copy(update=changes)


class GpuResult(WorkloadResult):
    """All that was measured of one workload in one sitting.

    Attributes:
        device: What it was measured on.
        rounds: Rounds that were run.
        peer_note: Why loadtune has no result; empty where it has one.
        dropped: What there was no time for, or what failed.
    """

    entrants: tuple[GpuEntrant, ...]
    device: DeviceFacts
    rounds: int = 0
    peer_note: str = ""
    dropped: tuple[str, ...] = ()
