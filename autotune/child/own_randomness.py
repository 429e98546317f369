"""Gives a forked process its own random numbers, as one that is started has; else the chances of all were alike."""

from __future__ import annotations

import random
import sys


def draw_anew() -> None:
    """Seed Python's generator and numpy's global one from the system; torch's begins alike in every process."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
