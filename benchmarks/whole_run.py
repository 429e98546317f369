"""One whole training run, as plain PyTorch code would do it: the truth that dltune's figures are held against.

Nothing of autotune is used but the step: the loader is torch's own, the loop is `for batch in loader`.

    python -m benchmarks.whole_run '{"dataset": "examples.tutorial:make_dataset", "step_seconds": 0.01, ...}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
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
    """

    dataset: str
    loader_kwargs: dict[str, Any]
    epochs: int
    step: str | None = None
    step_seconds: float = 0.0
    sharing_strategy: str = "file_descriptor"


def measure(run: WholeRun) -> float:
    """Train in a fresh process.

    Args:
        run: What to train.

    Returns:
        Samples per second from the first `iter(loader)` to the end of the last epoch.
    """
    command = [sys.executable, "-m", "benchmarks.whole_run", json.dumps(asdict(run))]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return float(json.loads(finished.stdout.splitlines()[-1])["samples_per_second"])


def train(run: WholeRun) -> float:
    """Train in this process and return samples per second."""
    import torch.multiprocessing
    from torch.utils.data import DataLoader, IterableDataset

    torch.multiprocessing.set_sharing_strategy(run.sharing_strategy)
    dataset = _resolve(run.dataset)()
    step = _resolve(run.step)() if run.step else lambda batch: time.sleep(run.step_seconds)
    shuffle: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    loader = DataLoader(dataset, **shuffle, **run.loader_kwargs)
    samples = 0
    started = time.perf_counter()
    for _ in range(run.epochs):
        for batch in loader:
            step(batch)
            samples += len(batch[0])
    return samples / (time.perf_counter() - started)


def _resolve(text: str) -> Any:
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    print(json.dumps({"samples_per_second": train(WholeRun(**json.loads(sys.argv[1])))}))
