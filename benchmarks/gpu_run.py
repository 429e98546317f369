"""A training process: gets dataset, device and step ready, and trains when it is told to, as plain PyTorch code would.

Of autotune it uses `device_prefetch`, where the configuration says so, and the events that tell how long the device
waited. The device is waited for at the end of each epoch only. Told to go once, it is a whole run in a fresh process;
told often, it screens a grid without paying for CUDA's start each time.

    python -m benchmarks.gpu_run

In: one line of JSON (`gpu_records.Workplace`), then one (`Order`) for each run.
Out: one line (`Ready`), then one (`GpuRun`) for each run.
"""

from __future__ import annotations

import gc
import platform
import sys
import threading
import time
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, Self

import torch
from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader

import autotune
from autotune.child.device import make_step_timer, read_accelerator, resolve_device, synchronize
from autotune.child.import_string import import_attribute
from autotune.config import FrozenModel
from autotune.system.gpus import GpuState, open_nvml, read_gpu_state
from autotune.system.machine import read_machine
from benchmarks.gpu_records import DeviceFacts, GpuRun, Order, Reading, Ready, Workplace
from benchmarks.gpu_steps import Step
from benchmarks.whole_run import Trained, count_samples

WARM_UP_STEPS: Final = 6
SAMPLE_SECONDS: Final = 0.1  # between two looks at the device


class Stage(NamedTuple):
    """What is ready before a run begins."""

    dataset: Any
    step: Step
    device: torch.device


class Utilization:
    """Asks NVML ten times a second how busy a device is, in a thread of its own.

    Attributes:
        shares: What it said.
    """

    def __init__(self, uuid: str | None, library: Any = None) -> None:
        self.shares: list[float] = []
        self._uuid = uuid
        self._library = library
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._uuid is not None:
            self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with open_nvml(self._library) as library:  # kept open: opening it takes far longer than asking
            while library is not None and not self._over.wait(SAMPLE_SECONDS):
                state = read_gpu_state(self._uuid or "", library)
                if state is None or state.utilization is None:
                    return
                self.shares.append(state.utilization)


def prepare(workplace: Workplace) -> Stage:
    """Get everything ready that a training run has behind it when its first epoch begins.

    The step is run a few times, on one batch: its first calls load libraries and choose kernels.

    Args:
        workplace: What to get ready.

    Returns:
        Dataset, step and device.
    """
    device = resolve_device(workplace.device)
    dataset = import_attribute(workplace.dataset)(**workplace.dataset_args)
    step = import_attribute(workplace.step)(device)
    loader = DataLoader(dataset, batch_size=workplace.batch_size, num_workers=int(workplace.in_worker))
    for batch in islice(loader, 1):
        for _ in range(WARM_UP_STEPS):
            step(batch)
    synchronize(device)
    return Stage(dataset, step, device)


def train(stage: Stage, order: Order) -> GpuRun:
    """Train.

    Args:
        stage: What is ready.
        order: With which configuration, and how long.

    Returns:
        How long each epoch took, and what was seen of the device.
    """
    set_sharing_strategy(order.config.process.sharing_strategy)
    loader = DataLoader(stage.dataset, shuffle=True, **order.config.loader_kwargs())
    ahead = order.config.process.device_prefetch
    batches: Iterable[Any] = autotune.device_prefetch(loader, stage.device) if ahead else loader
    accelerator = read_accelerator(stage.device)
    training = Training(stage, order)
    with Utilization(accelerator.uuid if accelerator is not None else None) as watched:
        for _ in range(order.epochs):
            training.run_epoch(batches)
            if training.given_up:
                break
    return training.describe(tuple(watched.shares))


class Training:
    """A run under way.

    Args:
        stage: What is ready.
        order: What was ordered.
    """

    def __init__(self, stage: Stage, order: Order) -> None:
        self._stage = stage
        self._most_seconds = order.most_seconds
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
            if self._most_seconds is not None and time.perf_counter() - self._moments[0] > self._most_seconds:
                self.given_up = True
                break
            clock.ask()
        synchronize(self._stage.device)
        self._moments.append(time.perf_counter())
        self._waited += clock.read()[1]

    def describe(self, utilization: tuple[float, ...]) -> GpuRun:
        """Give what the run gave, with what NVML said of it."""
        seconds = tuple(end - start for start, end in pairwise(self._moments))
        reading = Reading(waited_seconds=self._waited, utilization=utilization)
        return GpuRun(trained=Trained(self._samples, seconds, self.given_up), reading=reading)


def read_facts(device: torch.device) -> DeviceFacts:
    """Read what the runs are made on."""
    accelerator = read_accelerator(device)
    state = read_gpu_state(accelerator.uuid) if accelerator is not None and accelerator.uuid else None
    return DeviceFacts(
        name=accelerator.name if accelerator is not None else f"CPU ({read_machine().cpu or 'unknown'})",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=(state or GpuState()).driver,
        pcie=(state or GpuState()).pcie,
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
