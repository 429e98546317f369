"""Where values lie along the axes of a chart.

Lengths are in units of the drawing, which is as wide as a phone is: the page scales it, and its letters stay readable
on both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MAX_TICKS: Final = 6
LETTER_WIDTH: Final = 8.0  # on average, at the size of labels
MIN_THROUGHPUT: Final = 1e-9  # samples per second, so that a scale of nothing is a scale still


@dataclass(frozen=True, slots=True)
class Plot:
    """The drawing of a chart, and the area that its axes span."""

    width: float = 420.0
    height: float = 296.0
    left: float = 68.0
    right: float = 408.0
    top: float = 38.0
    bottom: float = 250.0


PLOT: Final = Plot()


@dataclass(frozen=True, slots=True)
class Scale:
    """Places values from 0 to `high` between two ends of a drawing; those outside are placed at the ends."""

    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Give the place of a value, to a tenth of a unit."""
        share = min(max(value, 0.0), self.high) / self.high
        return round(self.start + share * (self.end - self.start), 1)


def make_scale(high: float, start: float, end: float) -> Scale:
    """Make a scale from 0 to a round number that is at least `high`."""
    step = _round_up(max(high, MIN_THROUGHPUT) / MAX_TICKS)
    ticks = tuple(step * number for number in range(max(1, math.ceil(high / step - 1e-9)) + 1))
    return Scale(ticks[-1], start, end, ticks)


def _round_up(least: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
