"""The candidates of a search as columns: features and the predicted throughput of each configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from autotune.config import LoaderConfig
from autotune.settings import RANGES, SETTINGS, SWITCHES

Array = NDArray[np.floating]
Flags = NDArray[np.bool_]
RatePrediction = Callable[[LoaderConfig], float]

NUMBERS: Final = (SETTINGS["num_workers"], *(one for one in reversed(RANGES) if one.name != "num_workers"))


@dataclass(frozen=True)
class CandidateTable:
    """Configurations as columns: one row of features and the logarithm of the predicted throughput for each.

    Attributes:
        configs: The configurations.
        features: One row per configuration, as `compute_features` returns them.
        logs: Logarithm of the predicted samples per second.
    """

    configs: Sequence[LoaderConfig]
    features: Array
    logs: Array

    @classmethod
    def of(cls, configs: Sequence[LoaderConfig], predict: RatePrediction) -> Self:
        """Compute the columns of some configurations."""
        return cls(configs, compute_features(configs), np.log([predict(config) for config in configs]))

    @cached_property
    def index(self) -> dict[LoaderConfig, int]:
        """The row of each configuration."""
        return {config: row for row, config in enumerate(self.configs)}


def compute_features(configs: Sequence[LoaderConfig]) -> Array:
    """Return a row for each configuration: numbers as doublings, the number of workers first, then the switches."""
    rows = [
        [
            math.log2(1 + config.dataloader.num_workers),  # no workers are a choice, too
            *(math.log2(getattr(config.dataloader, setting.name) or 1) for setting in NUMBERS[1:]),
            *(setting.read(config) != setting.default for setting in SWITCHES),
        ]
        for config in configs
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NUMBERS) + len(SWITCHES))
