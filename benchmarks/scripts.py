"""Runs an unchanged training script with and without `dltune run`, alternating, and compares times and losses.

python -m benchmarks.scripts [--rounds 3] SCRIPT [ARGS ...]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.tables import say
from benchmarks.training import make_environment

LOSS: Final = re.compile(r"loss\W{1,4}(\d+\.\d+)", re.IGNORECASE)  # as scripts print it


def run_script(command: list[str]) -> tuple[float, list[str]]:
    """Run a script in the current folder; return the seconds that it took and the losses that it printed."""
    began = time.perf_counter()
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=make_environment())
    seconds = time.perf_counter() - began
    for line in finished.stderr.splitlines():
        if line.startswith(("dltune:", "        Use it:")):
            say(f"  {line}")
    return seconds, LOSS.findall(finished.stdout + finished.stderr)


def main() -> None:
    """Run the script of the command line, and print the times of all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs with and without dltune (3)")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGS ...]")
    given = parser.parse_args()
    plain, tuned, losses = list[float](), list[float](), list[list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            output = Path(folder) / f"{number}.json"  # each run begins without a result
            commands = (
                (plain, [sys.executable, *given.script]),
                (tuned, [sys.executable, "-m", "autotune", "run", "--output", str(output), *given.script]),
            )
            for times, command in commands[:: -1 if number % 2 else 1]:
                seconds, found = run_script(command)
                times.append(seconds)
                losses.append(found)
            say(f"round {number + 1}: {plain[-1]:.1f} s without, {tuned[-1]:.1f} s with dltune run")
    ratio = statistics.median(plain) / statistics.median(tuned)
    equal = "equal" if all(one == losses[0] for one in losses) else "different"
    print(f"{' '.join(given.script)}: {ratio:.3f} times as fast with dltune run; {len(losses[0])} losses, {equal}")


if __name__ == "__main__":
    main()
