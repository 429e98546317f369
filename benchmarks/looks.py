"""What does it cost to look for what goes wrong with workers? Times each look of the probe.

python -m benchmarks.looks [--only NAME ...] [--results FILE]
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.analysis.verdicts import format_table
from benchmarks.progress import say
from benchmarks.training.environment import make_environment

RESULTS: Final = Path("benchmarks/results/looks.json")
DATASETS: Final = {
    **{name: f"examples.{name}:make_dataset" for name in ("images", "tabular", "tutorial", "shards", "hf_dataset")},
    **{name: f"benchmarks.workloads.datasets:make_{name}" for name in ("decode", "reads", "stream")},
}
LOOKS: Final = (
    "warn_of_shared_files",
    "hangs_after_reading",
    "find_costly_lines",
    "find_faster_decoder",
    "predict_cow_growth",
    "look_at_worker",
    "compare_workers",
    "describe_slow_samples",
    "describe_storage",
    "describe_start",
    "count_samples_single_process",
    "workers_duplicate_data",
)  # functions that the probe calls for what it says, not for what it predicts
WHOLE: Final = "whole probe"


def time_probe(factory: str) -> dict[str, float]:
    """Probe a dataset in this process; gives the seconds of each look, and of the whole."""
    import torch

    from autotune.child import probe
    from autotune.child.training_step import make_step
    from autotune.child.workload_loading import load_workload
    from autotune.request import WorkloadRequest
    from autotune.system.machine import read_machine
    from autotune.trial.protocol import ProbeCommand

    spent: Counter[str] = Counter()
    for name in LOOKS:
        setattr(probe, name, _timed(getattr(probe, name), name, spent))
    request = WorkloadRequest(dataset=factory, step_seconds=3e-3)
    workload, step = load_workload(request), make_step(request, torch.device("cpu"))
    order = ProbeCommand(batch_size=32, largest=32, usable_cpus=read_machine().usable_cpus)
    _timed(probe.profile_workload, WHOLE, spent)(workload, step, torch.device("cpu"), order, lambda phase: None)
    return dict(spent)


def _timed(call: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            spent[name] += time.perf_counter() - began  # type: ignore[assignment]  # seconds, not a count

    return timed


def time_elsewhere(factory: str) -> dict[str, float]:
    """Probe a dataset in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.looks", "--factory", factory]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=make_environment())
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


def tabulate(found: dict[str, dict[str, float]]) -> str:
    """Lay out what the looks took together, the longest of them, and the whole probe."""
    rows = []
    for name, spent in found.items():
        looks = {look: seconds for look, seconds in spent.items() if look != WHOLE}
        longest = max(looks, key=lambda look: looks[look])
        said = f"{longest} {looks[longest]:.2f}"
        rows.append((name, f"{sum(looks.values()):.1f}", said, f"{spent[WHOLE]:.1f}"))
    return format_table(("dataset", "looks, s", "the longest", "probe, s"), rows)


def main() -> None:
    """Time each, keep it, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=DATASETS, default=list(DATASETS), metavar="NAME", help="(all)")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of the results ({RESULTS})")
    parser.add_argument("--factory", help=argparse.SUPPRESS)  # what the process of one dataset is called with
    given = parser.parse_args()
    if given.factory:
        print(json.dumps(time_probe(given.factory)))
        return
    found = {}
    for name in given.only:
        found[name] = time_elsewhere(DATASETS[name])
        say(f"{name} is probed")
    given.results.write_text(json.dumps(found, indent=1) + "\n")
    print(tabulate(found))


if __name__ == "__main__":
    main()
