"""False-positive check: the warnings of the profile of healthy datasets.

The datasets are those of the examples and of other libraries. A warning that the program prints here is either about
the machine, or true, or a false positive.

    python -m benchmarks.false_alarms [--only NAME ...] [--results FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from autotune.config import FrozenModel
from autotune.errors import DltuneError
from autotune.protocol.budgets import plan_budgets
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.system.machine import read_machine
from benchmarks.libraries import LIBRARIES
from benchmarks.tables import format_table, say

EXAMPLES: Final = ("images", "tabular", "tutorial", "shards", "hf_dataset")


class Profiled(FrozenModel):
    """The warnings about a healthy dataset, and the seconds of profiling it."""

    name: str
    seconds: float
    warnings: tuple[str, ...]


def profile_dataset(name: str, option: str, factory: str, *, has_batch_size: bool = True) -> Profiled:
    """Profile one dataset."""
    workload = WorkloadRequest(dataset=factory, is_loader=option == "--loader", step_seconds=0.003)
    started = time.monotonic()
    sizes, machine, request = (32,) if has_batch_size else (), read_machine(), TuningRequest(workload=workload)
    with TrialRunner(workload, request.stall_seconds) as runner:
        profile = runner.probe(sizes, plan_budgets(machine, request), machine.usable_cpus)
    return Profiled(name=name, seconds=time.monotonic() - started, warnings=profile.notes)


def main() -> None:
    """Profile each dataset and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    healthy = {name: ("--dataset", f"examples.{name}:make_dataset") for name in EXAMPLES}
    healthy |= {one.name: (one.option, one.factory) for one in LIBRARIES}
    unsized = [one.name for one in LIBRARIES if not one.has_batch_size]
    parser.add_argument("--only", nargs="+", choices=healthy, default=list(healthy), metavar="NAME", help="(all)")
    parser.add_argument("--results", type=Path, help="file of the results")
    given = parser.parse_args()
    found: list[Profiled] = []
    for name in given.only:
        try:
            found.append(profile_dataset(name, *healthy[name], has_batch_size=name not in unsized))
        except DltuneError as error:
            say(f"{name} failed: {error}")
            continue
        say(f"{name}: {len(found[-1].warnings)} warnings, {found[-1].seconds:.1f} s")
    if given.results is not None:
        given.results.write_bytes(TypeAdapter(list[Profiled]).dump_json(found, indent=1))
    rows = [(one.name, f"{one.seconds:.1f}", " ".join(one.warnings) or "-") for one in found]
    print(format_table(("dataset", "seconds", "warnings"), rows))


if __name__ == "__main__":
    main()
