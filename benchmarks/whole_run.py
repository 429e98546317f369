"""One whole training run, as plain PyTorch code would do it: the truth that dltune's figures are held against.

Nothing of autotune is used but the step: the loader is torch's own, the loop is `for batch in loader`.

    python -m benchmarks.whole_run '{"dataset": "examples.tutorial:make_dataset", "step_seconds": 0.01, ...}'
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class WholeRun:
    """What to train.

    Attributes:
        dataset: Import string of the dataset factory.
        loader_kwargs: Arguments of DataLoader.
        epochs: How long.
        step: Import string of the step factory; None sleeps for `step_seconds`.
        step_seconds: Seconds an emulated step takes.
        sharing_strategy: Argument of `torch.multiprocessing.set_sharing_strategy`.
        most_seconds: Seconds after which the run is given up; None for never.
    """

    dataset: str
    loader_kwargs: dict[str, Any]
    epochs: int
    step: str | None = None
    step_seconds: float = 0.0
    sharing_strategy: str = "file_descriptor"
    most_seconds: float | None = None


@dataclass(frozen=True)
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
        """Give the throughput of a longer run whose further epochs are like those after the first.

        Args:
            epochs: Length of that run.

        Returns:
            Samples per second; what was seen, for a run that was given up or had one epoch only.
        """
        if self.given_up or len(self.epoch_seconds) < 2:
            return self.samples_per_second
        later = statistics.fmean(self.epoch_seconds[1:])
        samples = self.samples / len(self.epoch_seconds)
        return epochs * samples / (self.epoch_seconds[0] + (epochs - 1) * later)


def measure(run: WholeRun) -> Trained:
    """Train in a fresh process.

    Args:
        run: What to train.

    Returns:
        How long each epoch took.

    Raises:
        subprocess.CalledProcessError: The run failed.
    """
    command = [sys.executable, "-m", "benchmarks.whole_run", json.dumps(asdict(run))]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    found = json.loads(finished.stdout.splitlines()[-1])
    return Trained(found["samples"], tuple(found["epoch_seconds"]), found["given_up"])


def train(run: WholeRun) -> Trained:
    """Train in this process."""
    import torch.multiprocessing
    from torch.utils.data import DataLoader, IterableDataset

    torch.multiprocessing.set_sharing_strategy(run.sharing_strategy)
    dataset = resolve(run.dataset)()
    step = resolve(run.step)() if run.step else lambda batch: time.sleep(run.step_seconds)
    shuffle: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    loader = DataLoader(dataset, **shuffle, **run.loader_kwargs)
    samples = 0
    moments = [time.perf_counter()]
    for _ in range(run.epochs):
        for batch in loader:
            step(batch)
            samples += count_samples(batch)
            if run.most_seconds is not None and time.perf_counter() - moments[0] > run.most_seconds:
                return _note(samples, [*moments, time.perf_counter()], given_up=True)
        moments.append(time.perf_counter())
    return _note(samples, moments, given_up=False)


def _note(samples: int, moments: list[float], *, given_up: bool) -> Trained:
    return Trained(samples, tuple(end - start for start, end in pairwise(moments)), given_up)


def count_samples(batch: Any) -> int:
    """Count the samples of a batch: the first dimension of the first tensor in it."""
    while isinstance(batch, Mapping | tuple | list):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def resolve(text: str) -> Any:
    """Import what an import string names."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    print(json.dumps(asdict(train(WholeRun(**json.loads(sys.argv[1]))))))
