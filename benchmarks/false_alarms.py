"""False-positive check: the warnings of `dltune --trials 0` about healthy datasets.

The datasets are those of the examples and of other libraries. A warning that the program prints here is either about
the machine, or true, or a false positive.

    python -m benchmarks.false_alarms [--only NAME ...] [--results FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from autotune import TunedProfile
from autotune.config import FrozenModel
from benchmarks.libraries import LIBRARIES
from benchmarks.tables import format_table, say
from benchmarks.training import make_environment

EXAMPLES: Final = ("images", "tabular", "tutorial", "shards", "hf_dataset")


class Profiled(FrozenModel):
    """The warnings about a healthy dataset, and the duration of the whole command."""

    name: str
    seconds: float
    warnings: tuple[str, ...]


def profile_dataset(name: str, option: str, factory: str) -> Profiled:
    """Profile one dataset as its user would."""
    command = [sys.executable, "-m", "autotune", option, factory, "--trials", "0", "--step-time", "3ms", "--json"]
    environment = make_environment() | {"PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        command += ["--batch-size", "32"]
        finished = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
        seconds = time.monotonic() - started
    if finished.returncode:
        raise RuntimeError(finished.stderr[-1000:])
    result = TunedProfile.model_validate_json(finished.stdout).result
    return Profiled(name=name, seconds=seconds, warnings=result.warnings)


def main() -> None:
    """Profile each dataset and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    healthy = {name: ("--dataset", f"examples.{name}:make_dataset") for name in EXAMPLES}
    healthy |= {one.name: (one.option, one.factory) for one in LIBRARIES}
    parser.add_argument("--only", nargs="+", choices=healthy, default=list(healthy), metavar="NAME", help="(all)")
    parser.add_argument("--results", type=Path, help="file of the results")
    given = parser.parse_args()
    found: list[Profiled] = []
    for name in given.only:
        try:
            found.append(profile_dataset(name, *healthy[name]))
        except RuntimeError as error:
            say(f"{name} failed: {error}")
            continue
        say(f"{name}: {len(found[-1].warnings)} warnings, {found[-1].seconds:.1f} s")
    if given.results is not None:
        given.results.write_bytes(TypeAdapter(list[Profiled]).dump_json(found, indent=1))
    rows = [(one.name, f"{one.seconds:.1f}", " ".join(one.warnings) or "-") for one in found]
    print(format_table(("dataset", "seconds", "warnings"), rows))


if __name__ == "__main__":
    main()
