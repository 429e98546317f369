"""Fits what batches of a few sizes took as a fixed part and a part for each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from autotune.trial.workload_profile import LinearBytes, LinearCost

NEGLIGIBLE_RATIO: Final = 1e-3  # of the largest value; the error of a smaller one is not taken relative to itself


def fit_cost(points: Sequence[tuple[float, float]]) -> LinearCost:
    """Fit the seconds that batches of some sizes take."""
    fixed, slope = _fit_line(points)
    return LinearCost(fixed_seconds=fixed, per_item_seconds=slope)


def fit_bytes(points: Sequence[tuple[float, int]]) -> LinearBytes:
    """Fit the device memory that batches of some sizes take, and no size less than it was seen to take."""
    fixed, slope = _fit_line([(size, float(found)) for size, found in points])
    lift = max(found - (fixed + slope * size) for size, found in points)
    return LinearBytes(fixed_bytes=math.ceil(fixed + max(0.0, lift)), sample_bytes=math.ceil(slope))


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit `fixed + size * slope` to (size, value), by least squares of relative errors, neither part negative."""
    largest = max(value for _, value in points)
    weights = [1 / max(value, NEGLIGIBLE_RATIO * largest, 1e-9) ** 2 for _, value in points]
    mean_size, mean_value = (_average(weights, column) for column in zip(*points, strict=True))
    beside = [(size - mean_size, value - mean_value) for size, value in points]
    spread = _average(weights, [size**2 for size, _ in beside])
    if spread == 0.0:  # one size tells no fixed part
        return 0.0, mean_value / max(mean_size, 1e-9)
    slope = max(0.0, _average(weights, [size * value for size, value in beside]) / spread)
    if slope * mean_size <= mean_value:
        return mean_value - slope * mean_size, slope
    rise = _average(weights, [size * value for size, value in points])
    return 0.0, rise / _average(weights, [size**2 for size, _ in points])


def _average(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
