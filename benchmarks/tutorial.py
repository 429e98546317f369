"""Is the choice for the tutorial's workload as good as the best of a grid, and is its promise kept?

Tunes, then measures whole training runs of 21 grid configurations and of the choice; the best of the grid and
the choice are measured again in turn, so that luck does not make either better than it is. About 8 minutes.

    python -m benchmarks.tutorial
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune import load
from benchmarks.whole_run import WholeRun, measure

DATASET = "examples.tutorial:make_dataset"
STEP_SECONDS = 0.010
BATCH_SIZE = 32
WORKERS = (0, 1, 2, 4, 8, 12, 16)
PREFETCH = (1, 2, 4)
SCREEN_EPOCHS = 4
EPOCHS = 10
ROUNDS = 3
FINALISTS = 3


def tune(output: Path) -> float:
    """Run the command as a user would and return its wall time in seconds."""
    command = [sys.executable, "-m", "autotune.cli", "--dataset", DATASET, "--batch-size", str(BATCH_SIZE)]
    command += ["--step-time", "10ms", "--trials", "40", "--no-resume", "-o", str(output)]
    started = time.monotonic()
    subprocess.run(command, check=True, env=os.environ)
    return time.monotonic() - started


def list_grid() -> list[dict[str, Any]]:
    """List the grid as arguments of DataLoader; prefetch has no meaning without workers."""
    plain = [{"batch_size": BATCH_SIZE, "num_workers": 0}]
    return plain + [
        {"batch_size": BATCH_SIZE, "num_workers": workers, "prefetch_factor": prefetch, "persistent_workers": True}
        for workers in WORKERS
        if workers
        for prefetch in PREFETCH
    ]


def train(kwargs: dict[str, Any], epochs: int, sharing_strategy: str = "file_descriptor") -> float:
    """Measure one whole run of a configuration, in samples per second."""
    return measure(
        WholeRun(
            dataset=DATASET,
            loader_kwargs=kwargs,
            epochs=epochs,
            step_seconds=STEP_SECONDS,
            sharing_strategy=sharing_strategy,
        )
    )


def screen_grid(grid: Sequence[dict[str, Any]]) -> list[float]:
    """Measure the grid by runs of a few epochs, in samples per second."""
    rates = []
    for kwargs in grid:
        rates.append(train(kwargs, SCREEN_EPOCHS))
        print(f"  grid  {_label(kwargs)}  {rates[-1]:7.1f}/s", flush=True)
    return rates


def _label(kwargs: dict[str, Any]) -> str:
    return f"w={kwargs['num_workers']:<2} pf={kwargs.get('prefetch_factor', '-')}"


def main() -> None:
    """Tune, measure the grid, compare, print, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/tutorial.json"))
    results = parser.parse_args().results
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "dltune.json"
        seconds = tune(output)
        chosen = load(output)
    promise = chosen.profile.result.samples_per_second
    strategy = chosen.config.process.sharing_strategy
    grid = list_grid()
    screened = screen_grid(grid)
    finalists = [kwargs for _, kwargs in sorted(zip(screened, grid, strict=True), key=lambda pair: -pair[0])][
        :FINALISTS
    ]
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for kwargs in finalists:
            rates.setdefault(_label(kwargs), []).append(train(kwargs, EPOCHS))
        rates.setdefault("choice", []).append(train(chosen.loader_kwargs(), EPOCHS, strategy))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    choice = medians.pop("choice")
    best = max(medians, key=lambda name: medians[name])
    summary = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": chosen.profile.hardware.usable_cpus,
        "tuning_seconds": round(seconds, 1),
        "choice": chosen.loader_kwargs() | {"sharing_strategy": strategy},
        "choice_samples_per_second": choice,
        "promised_samples_per_second": promise,
        "promise_over_truth": promise / choice,
        "grid_best": best,
        "grid_best_samples_per_second": medians[best],
        "choice_over_grid_best": choice / medians[best],
        "runs": rates,
        "grid_screened": {_label(kwargs): round(rate, 1) for kwargs, rate in zip(grid, screened, strict=True)},
    }
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"tuned in {seconds:.0f} s; promised {promise:.0f}/s, whole runs give {choice:.0f}/s", end=" ")
    print(f"({promise / choice - 1:+.1%})")
    print(f"best of the grid: {best} {medians[best]:.0f}/s; the choice reaches {choice / medians[best]:.1%} of it")


if __name__ == "__main__":
    main()
