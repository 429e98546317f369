"""A training run in a fresh process, in plain PyTorch: the value that predictions are compared with.

    python -m benchmarks.training        # reads a Job (JSON) from stdin and prints a TrainingRun (JSON)

It uses nothing of autotune but `device_prefetch`, if the configuration asks for it. A device is synchronized at the end
of each epoch only.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import torch
from pydantic import Field
from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.child.device import read_accelerator, resolve_device, synchronize
from autotune.config import FrozenModel, LoaderConfig
from autotune.system.machine import read_machine

ROOT: Final = Path(__file__).parent.parent
MAX_SECONDS: Final = 420.0  # of a process, its start included: a first start reads gigabytes of libraries
WARM_UP_STEPS: Final = 6  # on a device: the first calls load libraries and choose kernels
LINES_SHOWN: Final = 12  # of the output of a failed process
Step = Callable[[Any], object]


class Job(FrozenModel):
    """A training run.

    Attributes:
        dataset: Import string of the dataset's factory.
        dataset_args: Its keyword arguments.
        step: Import string of a step's factory; None sleeps for `step_seconds`.
        step_seconds: Length of a simulated step.
        device: Device of the step, as on the command line; None for a step without one, which is not warmed up.
        config: The configuration.
        epochs: Epochs, at most.
        min_epochs: Epochs, at least, unless the run takes `max_seconds`.
        enough_seconds: No further epoch starts after that time; None for no limit.
        max_seconds: The run is given up after that time, within an epoch; None for never.
    """

    dataset: str
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    step: str | None = None
    step_seconds: float = 0.0
    device: str | None = None
    config: LoaderConfig
    epochs: int
    min_epochs: int = 1
    enough_seconds: float | None = None
    max_seconds: float | None = None


class DeviceFacts(FrozenModel):
    """The device of a run (the CPU's model without one), and versions."""

    name: str
    torch: str
    cuda: str | None = None
    python: str


class TrainingRun(FrozenModel):
    """Result of a run.

    Attributes:
        device: What it ran on.
        samples: Samples of all epochs.
        epoch_seconds: Duration of each epoch, from `iter(loader)` to the end of its last step.
        given_up: Whether it was ended within its last epoch.
    """

    device: DeviceFacts
    samples: int
    epoch_seconds: tuple[float, ...]
    given_up: bool = False

    def extrapolate(self, epochs: int) -> float:
        """Return samples per second of a run of so many epochs, the further ones like those after the first.

        A run that was given up, or that has one epoch, counts as it is.
        """
        if self.given_up or len(self.epoch_seconds) < 2:
            return self.samples / sum(self.epoch_seconds)
        later = statistics.fmean(self.epoch_seconds[1:])
        samples = self.samples / len(self.epoch_seconds)
        return epochs * samples / (self.epoch_seconds[0] + (epochs - 1) * later)


class TrainingError(Exception):
    """A training process failed or hung; the message is the end of its output."""


def run_training(job: Job) -> TrainingRun:
    """Train in a fresh process.

    Raises:
        TrainingError: The process failed or hung.
    """
    command = [sys.executable, "-m", "benchmarks.training"]
    options: dict[str, Any] = {"input": job.model_dump_json(), "cwd": ROOT, "env": make_environment()}
    try:
        finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAX_SECONDS, **options)
    except subprocess.TimeoutExpired:
        raise TrainingError(f"no result within {MAX_SECONDS:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise TrainingError("\n".join(error.stderr.strip().splitlines()[-LINES_SHOWN:])) from None
    return TrainingRun.model_validate_json(finished.stdout)


def make_environment() -> dict[str, str]:
    """Return the environment of a process that imports this project's modules from any folder.

    Its output is buffered: otherwise Python loses the rest of a long text when a worker ends while it is written.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": ""}


def make_step(name: str | None, seconds: float, device: torch.device | None) -> Step:
    """Return a real step by the import string of its factory, or else one that sleeps."""
    if name is None:
        return lambda batch: time.sleep(seconds)
    factory: Callable[..., Step] = resolve_name(name)
    return factory() if device is None else factory(device)


def train(job: Job) -> TrainingRun:
    """Train in this process."""
    device = torch.device("cpu") if job.device is None else resolve_device(job.device)
    dataset = resolve_name(job.dataset)(**job.dataset_args)
    step = make_step(job.step, job.step_seconds, None if job.device is None else device)
    if job.device is not None:
        _warm_up(step, dataset, job.config, device)
    set_sharing_strategy(job.config.process.sharing_strategy)
    shuffle: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    loader = DataLoader(dataset, **shuffle, **job.config.loader_kwargs())
    batches: Iterable[Any] = loader
    if job.config.process.device_prefetch:
        batches = autotune.device_prefetch(loader, device)
    began, samples, epoch_seconds, given_up = time.perf_counter(), 0, list[float](), False
    while not given_up and len(epoch_seconds) < job.epochs:
        is_enough = job.enough_seconds is not None and sum(epoch_seconds) >= job.enough_seconds
        if is_enough and len(epoch_seconds) >= job.min_epochs:
            break
        started = time.perf_counter()
        for batch in batches:
            step(batch)
            samples += count_samples(batch)
            if job.max_seconds is not None and time.perf_counter() - began > job.max_seconds:
                given_up = True
                break
        synchronize(device)
        epoch_seconds.append(time.perf_counter() - started)
    return TrainingRun(
        device=read_facts(device), samples=samples, epoch_seconds=tuple(epoch_seconds), given_up=given_up
    )


def _warm_up(step: Step, dataset: Any, config: LoaderConfig, device: torch.device) -> None:
    """Run the step a few times on one batch, from a worker if the configuration has workers."""
    settings = config.dataloader
    for batch in islice(DataLoader(dataset, settings.batch_size, num_workers=min(1, settings.num_workers)), 1):
        for _ in range(WARM_UP_STEPS):
            step(batch)
    synchronize(device)


def count_samples(batch: Any) -> int:
    """Return the first dimension of the first tensor of a batch."""
    while isinstance(batch, Mapping | tuple | list):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def read_facts(device: torch.device) -> DeviceFacts:
    """Return what the runs are made on."""
    accelerator = read_accelerator(device)
    return DeviceFacts(
        name=accelerator.name if accelerator is not None else f"CPU ({read_machine().cpu or 'unknown'})",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=platform.python_version(),
    )


if __name__ == "__main__":
    print(train(Job.model_validate_json(sys.stdin.read())).model_dump_json())
