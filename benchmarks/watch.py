"""Compares the numbers of `autotune.watch` with those of a stopwatch, and counts its sentences.

    python -m benchmarks.watch

Each case trains in a process of its own: a list, a DataLoader and a webdataset loader; one whose data becomes so slow
that training takes 30% longer; and ten undisturbed ones. Most of their time they sleep, so all train at once.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, TensorDataset

import autotune
from autotune.online.autopilot import Stats
from benchmarks.tables import format_table
from benchmarks.training import ROOT, make_environment

STEP_SECONDS: Final = 0.02
SECONDS: Final = 75.0
BATCHES: Final = 100_000
SLOWER: Final = 1.3
CASES: Final = ("list", "DataLoader", "webdataset", "slow", *["quiet"] * 10)


def make_batches(kind: str) -> Iterable[Any]:
    """Return what a case iterates over."""
    if kind == "DataLoader":
        return DataLoader(TensorDataset(torch.zeros(BATCHES, 4)), 2, num_workers=1)
    if kind == "webdataset":
        return _make_webdataset()
    return _become_slow() if kind == "slow" else [torch.zeros(2, 4)] * BATCHES


def _become_slow() -> Iterator[Any]:
    started = time.perf_counter()
    while True:
        yield torch.zeros(2, 4)
        if time.perf_counter() - started > SECONDS / 3:
            time.sleep((SLOWER - 1) * STEP_SECONDS)


def _make_webdataset() -> Iterable[Any]:
    import webdataset

    path = Path(tempfile.mkdtemp()) / "shard.tar"
    with tarfile.open(path, "w") as shard:
        for number in range(1000):
            member = tarfile.TarInfo(f"{number:05}.txt")
            member.size = 4
            shard.addfile(member, io.BytesIO(b"text"))
    dataset = webdataset.WebDataset(str(path), shardshuffle=False).decode().batched(2).repeat()
    loader: Iterable[Any] = webdataset.WebLoader(dataset, batch_size=None, num_workers=1)
    return loader


def train(kind: str) -> dict[str, float]:
    """Train; return the largest relative errors of rate and wait share, and the mean wait share."""
    shown, found, waits = list[Stats](), list[tuple[float, float]](), list[float]()
    watched = iter(autotune.watch(make_batches(kind), on_stats=shown.append))
    requested = began = window = time.perf_counter()
    while requested - began < SECONDS:
        next(watched)
        now = time.perf_counter()
        waits.append(now - requested)
        if len(shown) > len(found):
            found.append((len(waits) / (now - window), sum(waits) / (now - window)))
            waits, window = [], now
        time.sleep(STEP_SECONDS)
        requested = time.perf_counter()
    pairs = list(zip(shown, found, strict=True))
    return {
        "rate": max(abs(one["data/batches_per_second"] / rate - 1) for one, (rate, _) in pairs),
        "wait share": max(abs(one["data/wait_share"] - share) for one, (_, share) in pairs),
        "windows": len(pairs),
    }


def main() -> None:
    """Train all cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=CASES, help="train this one here, and print its numbers as JSON")
    if (case := parser.parse_args().case) is not None:
        print(json.dumps(train(case)))
        return
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.watch"]
    processes = [
        (case, subprocess.Popen([*command, case], cwd=ROOT, env=make_environment(), **options)) for case in CASES
    ]
    rows = []
    for case, process in processes:
        output, errors = process.communicate(timeout=3 * SECONDS)
        numbers = json.loads(output)
        row = f"{numbers['windows']}", f"{numbers['rate']:.2%}", f"{numbers['wait share']:.2%}"
        rows.append((case, *row, f"{errors.count('dltune: ')}"))
    head = ("case", "windows", "error of the rate", "error of the wait share", "sentences")
    print(format_table(head, rows))


if __name__ == "__main__":
    main()
