"""One whole training run with a loader as its user makes it, in a process of its own: `python -m ... FACTORY [FILE]`.

Without a tuned file the factory is called as it is; with one, by what `autotune.load` gives. Prints samples per second.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import autotune
from autotune.profiles.batches import count_samples
from benchmarks.workloads import libraries

EPOCHS: Final = 10
STEP_SECONDS: Final = 0.003


def main(name: str, file: str | None) -> None:
    """Train, and print how fast that was."""
    factory = getattr(libraries, name)
    loader = factory() if file is None else autotune.load(file).make_loader(factory)
    samples, started = 0, time.perf_counter()
    for epoch in range(EPOCHS):
        if epoch and name == "hand_written":
            loader = factory() if file is None else autotune.load(file).make_loader(factory)
        for batch in loader:
            samples += count_samples(batch, libraries.BATCH)
            time.sleep(STEP_SECONDS)
    print(samples / (time.perf_counter() - started))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
