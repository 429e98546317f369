"""Where configurations lie beside each other: the rows of numbers by which the surrogate compares them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from autotune.config import LoaderConfig
from autotune.settings import RANGES, SETTINGS, SWITCHES, Setting

Numbers = NDArray[np.floating]

COLUMNS: Final = (SETTINGS["num_workers"], *(knob for knob in reversed(RANGES) if knob.name != "num_workers"))
OWN_COLUMN: Final = len(COLUMNS) + len(SWITCHES)  # the first of the user's own knobs
MAX_SPAN: Final = 8.0  # from the first to the last of many numbers: in small steps none is rougher
WORD_DISTANCE: Final = 100.0  # between choices that have nothing in common, far beyond the scale of any number


@dataclass(frozen=True)
class Coordinates:
    """The place of every configuration.

    Attributes:
        own: The places of each choice of the user's own knobs, by name: numbers lie one apart in their order, since
            choices are dense where it matters, and nearer where there are many; words lie far from each other.
    """

    own: Mapping[str, Mapping[Any, float]]

    @classmethod
    def of(cls, candidates: Sequence[LoaderConfig]) -> Self:
        """Lay out the choices that occur among the candidates."""
        seen: dict[str, dict[Any, None]] = {}
        for config in candidates:
            for name, value in config.knobs.items():
                seen.setdefault(name, {})[value] = None
        return cls({name: _lay_out(list(values)) for name, values in seen.items()})

    def locate(self, configs: Sequence[LoaderConfig]) -> Numbers:
        """Turn configurations into rows: the numbers in doublings, workers first, then switches, then own knobs."""
        rows = [
            (
                *(_count_doublings(knob, config) for knob in COLUMNS),
                *(switch.read(config) != switch.default for switch in SWITCHES),
                *(places.get(config.knobs.get(name), -WORD_DISTANCE) for name, places in self.own.items()),
            )
            for config in configs
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), OWN_COLUMN + len(self.own))


def _lay_out(values: list[Any]) -> dict[Any, float]:
    if any(isinstance(value, str | bool) for value in values):
        return {value: WORD_DISTANCE * number for number, value in enumerate(values)}
    spacing = min(1.0, MAX_SPAN / max(1, len(values) - 1))
    return {value: spacing * number for number, value in enumerate(sorted(values))}


def _count_doublings(knob: Setting, config: LoaderConfig) -> float:
    value = getattr(getattr(config, knob.section), knob.name)
    return math.log2(1 + value if knob.name == "num_workers" else value or 1)  # no workers are a choice, too
