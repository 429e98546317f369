"""A training script that imports for two seconds: `python script.py EPOCHS METHOD [FILE]` prints samples per second."""

from __future__ import annotations

import multiprocessing
import sys
import time

from torch.utils.data import DataLoader

import autotune
from benchmarks.workloads.reads import make_reads

IMPORT_SECONDS = 2.0  # of CPU time, as large libraries take
STEP_SECONDS = 0.003
BATCH = 32

while time.process_time() < IMPORT_SECONDS:  # torch's own import is part of it
    pass


def main() -> None:
    """Train with the loader as tuned, or with PyTorch's defaults."""
    epochs, method, *file = sys.argv[1:]
    multiprocessing.set_start_method(method)
    dataset = make_reads()
    loader = (
        autotune.load(file[0]).make_loader(dataset, shuffle=True)
        if file
        else DataLoader(dataset, batch_size=BATCH, shuffle=True)
    )
    samples, started = 0, time.perf_counter()
    for _ in range(int(epochs)):
        for batch in loader:
            samples += len(batch)
            time.sleep(STEP_SECONDS)
    print(samples / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
