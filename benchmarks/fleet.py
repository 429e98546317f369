"""Does the answer of one machine type save trials on the next? Replays grids that were recorded on two of them.

The second type is this machine with one of its CPUs (`taskset --cpu-list 0`); its grids lie in a folder of their own.
A search begins cold, or from what was best on the other type, as `dltune retune` begins from the nearest profile.

    taskset --cpu-list 0 python -m benchmarks.traces --only decode tutorial --folder benchmarks/traces/one_cpu
    python -m benchmarks.fleet [--seeds 20]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import optuna

from autotune.config import FrozenModel
from autotune.search.warm_start import WarmStart, start_elsewhere
from benchmarks.replay import Replayed, read_traces, replay
from benchmarks.traces import TRACES, Trace

RESULTS: Final = Path("benchmarks/results/fleet.json")
ONE_CPU: Final = TRACES / "one_cpu"


class Transfer(FrozenModel):
    """What one workload's searches on a machine type took, cold and from the answer of another type."""

    trace: str
    from_cpus: float
    to_cpus: float
    cold: tuple[Replayed, ...]
    warm: tuple[Replayed, ...]


def carry_over(there: Trace, here: Trace) -> WarmStart:
    """Begin with what was best on the other type, by the mean of both passes."""
    rates = [first * second for first, second in zip(*there.passes, strict=True)]
    best = there.configs[rates.index(max(rates))]
    return start_elsewhere(best, here.machine.usable_cpus / there.machine.usable_cpus)


def transfer(there: Trace, here: Trace, seeds: int) -> Transfer:
    """Search on one type as often as there are seeds, cold and from the other type's answer."""
    warm = carry_over(there, here)
    return Transfer(
        trace=here.name,
        from_cpus=there.machine.usable_cpus,
        to_cpus=here.machine.usable_cpus,
        cold=tuple(replay(here, "model", seed) for seed in range(seeds)),
        warm=tuple(replay(here, "model", seed, warm) for seed in range(seeds)),
    )


def describe(found: Transfer) -> str:
    """Give the line of the table of one workload on one type."""
    cold, warm = (_sum_up(runs) for runs in (found.cold, found.warm))
    return f"{found.trace:12} {found.from_cpus:g} to {found.to_cpus:g} CPUs   cold {cold}   from the other type {warm}"


def _sum_up(runs: Sequence[Replayed]) -> str:
    trials, shares = [run.trials for run in runs], [run.share for run in runs]
    return f"{statistics.fmean(trials):4.1f} trials, {statistics.fmean(shares):6.1%} (worst {min(shares):6.1%})"


def main() -> None:
    """Replay all pairs, print the table and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    two = {trace.name: trace for trace in read_traces()}
    found = []
    for one in read_traces(ONE_CPU):
        for there, here in ((two[one.name], one), (one, two[one.name])):
            found.append(transfer(there, here, options.seeds))
            print(describe(found[-1]), flush=True)
    summary = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "transfers": [one.model_dump() for one in found],
    }
    options.results.write_text(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main()
