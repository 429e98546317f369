"""A training process: gets dataset and step ready, and trains when it is told to, as plain PyTorch code would.

Of autotune it uses `device_prefetch`, where the configuration says so, and the timer that tells how long the step
waited. A device is waited for at the end of each epoch only. Told to go once, it is a whole run in a fresh process;
told often, it screens a grid without paying for CUDA's start each time.

    python -m benchmarks.training.process

In: one line of JSON (`messages.Workplace`), then one (`Order`) for each run.
Out: one line (`Ready`), then one (`TrainingRun`) for each run.
"""

from __future__ import annotations

import gc
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, pairwise
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.child.device import make_step_timer, read_accelerator, resolve_device, synchronize
from autotune.config import FrozenModel
from autotune.system.machine import read_machine
from benchmarks.training.messages import DeviceFacts, Order, Ready, Trained, TrainingRun, Workplace

WARM_UP_STEPS: Final = 6
CPU: Final = torch.device("cpu")
Step = Callable[[Any], object]


class Stage(NamedTuple):
    """What is ready before a run begins."""

    dataset: Any
    step: Step
    device: torch.device


def make_step(name: str | None, seconds: float, device: torch.device | None) -> Step:
    """Make a real step by its import string, or else one that sleeps."""
    if name is None:
        return lambda batch: time.sleep(seconds)
    factory: Callable[..., Step] = resolve_name(name)
    return factory() if device is None else factory(device)


def prepare(workplace: Workplace) -> Stage:
    """Get everything ready that a training run has behind it when its first epoch begins.

    A step on a device is run a few times, on one batch: its first calls load libraries and choose kernels.
    """
    device = resolve_device(workplace.device) if workplace.device is not None else None
    dataset = resolve_name(workplace.dataset)(**workplace.dataset_args)
    step = make_step(workplace.step, workplace.step_seconds, device)
    if device is None:
        return Stage(dataset, step, CPU)
    loader = DataLoader(dataset, batch_size=workplace.batch_size, num_workers=int(workplace.in_worker))
    for batch in islice(loader, 1):
        for _ in range(WARM_UP_STEPS):
            step(batch)
    synchronize(device)
    return Stage(dataset, step, device)


def train(stage: Stage, order: Order) -> TrainingRun:
    """Train as ordered."""
    set_sharing_strategy(order.config.process.sharing_strategy)
    shuffle: dict[str, Any] = {} if isinstance(stage.dataset, IterableDataset) else {"shuffle": True}
    loader = DataLoader(stage.dataset, **shuffle, **order.config.loader_kwargs())
    ahead = order.config.process.device_prefetch
    batches: Iterable[Any] = autotune.device_prefetch(loader, stage.device) if ahead else loader
    training = Training(stage, order)
    for _ in range(order.epochs):
        training.run_epoch(batches)
        if training.given_up:
            break
    return training.describe()


class Training:
    """A run under way."""

    def __init__(self, stage: Stage, order: Order) -> None:
        self._stage = stage
        self._max_seconds = order.max_seconds
        self._samples = 0
        self._waited = 0.0
        self.given_up = False
        self._moments = [time.perf_counter()]

    def run_epoch(self, batches: Iterable[Any]) -> None:
        """Train for one epoch, or until the time is up."""
        clock = make_step_timer(self._stage.device)
        clock.ask()
        for batch in batches:
            clock.begin()
            self._stage.step(batch)
            clock.end()
            self._samples += count_samples(batch)
            if self._max_seconds is not None and time.perf_counter() - self._moments[0] > self._max_seconds:
                self.given_up = True
                break
            clock.ask()
        synchronize(self._stage.device)
        self._moments.append(time.perf_counter())
        self._waited += clock.read()[1]

    def describe(self) -> TrainingRun:
        """Return the result of the run."""
        seconds = tuple(end - start for start, end in pairwise(self._moments))
        trained = Trained(self._samples, seconds, self.given_up)
        return TrainingRun(trained=trained, waited_seconds=self._waited)


def count_samples(batch: Any) -> int:
    """Count the samples of a batch: the first dimension of the first tensor in it."""
    while isinstance(batch, Mapping | tuple | list):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def read_facts(device: torch.device) -> DeviceFacts:
    """Read what the runs are made on."""
    accelerator = read_accelerator(device)
    return DeviceFacts(
        name=accelerator.name if accelerator is not None else f"CPU ({read_machine().cpu or 'unknown'})",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=platform.python_version(),
    )


def main() -> None:
    """Serve the benchmark that started this process."""
    stage = prepare(Workplace.model_validate_json(sys.stdin.readline()))
    _tell(Ready(device=read_facts(stage.device), samples=len(stage.dataset)))
    for line in sys.stdin:
        run = train(stage, Order.model_validate_json(line))
        gc.collect()  # the loader's workers go with it, before the next run begins
        _tell(run)


def _tell(value: FrozenModel) -> None:
    print(value.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
