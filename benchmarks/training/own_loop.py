"""One whole training run with a loader or dataset as its user makes it: `python -m ... FACTORY [FILE] [--dataset]`.

Without a tuned file the factory is called as it is; with one, by what `autotune.load` gives. A dataset is given to a
DataLoader of torch. Prints samples per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

import autotune
from autotune.child.batches import count_samples
from benchmarks.workloads import libraries

STEP_SECONDS: Final = 0.003


def main() -> None:
    """Train, and print how fast that was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factory", help="a function of benchmarks.workloads.libraries")
    parser.add_argument("file", nargs="?", help="tuned file (the loader as its user has it)")
    parser.add_argument("--dataset", action="store_true", help="the function gives a dataset")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of the run (2)")
    given = parser.parse_args()
    factory = getattr(libraries, given.factory)
    print(train(find_loaders(factory, given.file, gives_dataset=given.dataset), given.epochs))


def train(loaders: Iterator[Any], epochs: int) -> float:
    """Train for so many epochs; gives samples per second, the making of the first loader left out."""
    loader = next(loaders)
    samples, started = 0, time.perf_counter()
    for epoch in range(epochs):
        if epoch and isinstance(loader, GeneratorType):  # it can be gone through once
            loader = next(loaders)
        for batch in loader:
            samples += count_samples(batch, libraries.BATCH)
            time.sleep(STEP_SECONDS)
    return samples / (time.perf_counter() - started)


def find_loaders(factory: Callable[..., Any], file: str | None, *, gives_dataset: bool) -> Iterator[Any]:
    """Make the loader, as it is or as tuned, as often as it is asked for."""
    while True:
        if gives_dataset:
            yield _load_dataset(factory(), file)
        else:
            made = factory() if file is None else autotune.load(file).make_loader(factory)
            yield _ask_module(made)


def _load_dataset(dataset: Any, file: str | None) -> Any:
    order: dict[str, Any] = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    if file is None:
        return DataLoader(dataset, batch_size=libraries.BATCH, **order)
    return autotune.load(file).make_loader(dataset, **order)


def _ask_module(made: Any) -> Any:
    """Give the training loader of a module, asked as a Trainer does; whatever else was made is a loader."""
    if not hasattr(made, "train_dataloader"):
        return made
    made.prepare_data()
    made.setup(stage="fit")
    return made.train_dataloader()


if __name__ == "__main__":
    main()
