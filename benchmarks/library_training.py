"""A whole training run with another library's loader or dataset, unchanged or with the settings of a tuned file.

    python -m benchmarks.library_training MODULE:FUNCTION [FILE] [--dataset] [--epochs N]

Prints samples per second. A dataset is given to a DataLoader of torch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import GeneratorType
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.child.sample_counts import count_samples
from benchmarks.workloads.libraries.made_once import BATCH

STEP_SECONDS: Final = 0.003


def main() -> None:
    """Train, and print samples per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factory", help="import string of a function of benchmarks.workloads.libraries")
    parser.add_argument("file", nargs="?", help="tuned file (default: the unchanged loader)")
    parser.add_argument("--dataset", action="store_true", help="the function returns a dataset")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of the run (2)")
    given = parser.parse_args()
    print(train(find_loaders(resolve_name(given.factory), given.file, gives_dataset=given.dataset), given.epochs))


def train(loaders: Iterator[Any], epochs: int) -> float:
    """Train; return samples per second, without the construction of the first loader."""
    loader = next(loaders)
    samples, started = 0, time.perf_counter()
    for epoch in range(epochs):
        if epoch and isinstance(loader, GeneratorType):  # it can be iterated once
            loader = next(loaders)
        for batch in loader:
            samples += count_samples(batch, BATCH)
            time.sleep(STEP_SECONDS)
    return samples / (time.perf_counter() - started)


def find_loaders(factory: Callable[..., Any], file: str | None, *, gives_dataset: bool) -> Iterator[Any]:
    """Yield the loader, unchanged or tuned, made again each time."""
    while True:
        if gives_dataset:
            yield _load_dataset(factory(), file)
        else:
            made = factory() if file is None else autotune.load(file).make_loader(factory)
            yield _ask_module(made)


def _load_dataset(dataset: Any, file: str | None) -> Any:
    order: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    if file is None:
        return DataLoader(dataset, batch_size=BATCH, **order)
    return autotune.load(file).make_loader(dataset, **order)


def _ask_module(made: Any) -> Any:
    """Return the training loader of a module, as a Trainer does; anything else is a loader."""
    if not hasattr(made, "train_dataloader"):
        return made
    made.prepare_data()
    made.setup(stage="fit")
    return made.train_dataloader()


if __name__ == "__main__":
    main()
