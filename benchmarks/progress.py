"""What is told while a benchmark runs?"""

from __future__ import annotations

import time

from autotune.settings import describe_config
from benchmarks.records import Tuning

_started = time.monotonic()


def say(text: str) -> None:
    """Print a line with the time since the start."""
    seconds = int(time.monotonic() - _started)
    print(f"{seconds // 60:3}:{seconds % 60:02}  {text}", flush=True)


def say_choice(tuning: Tuning) -> None:
    """Print what a tuner chose."""
    say(f"  {tuning.tuner:<9} {describe_config(tuning.config)}  in {tuning.seconds:.0f} s  ({tuning.note})")
