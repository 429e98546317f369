"""Compares two results: what they set, and whether one is faster beyond the noise of both."""

from __future__ import annotations

import math
from typing import Final

from autotune.config import FrozenModel, Interval, Rate
from autotune.profiles.matching import compare_hardware, compare_software, compare_workloads
from autotune.profiles.schema import ProfileResult, TunedProfile

MAX_LOG: Final = 69.0  # of a ratio, which is then 1e30: a larger one is written as that
UNCONFIRMED_CI_HALF_WIDTH: Final = 0.1  # relative half-width of a throughput that was never confirmed


class Comparison(FrozenModel):
    """How a second result differs from a first, each given by its name.

    Attributes:
        rates: Samples per second of both.
        ratio: Throughput of the second over that of the first; None where either delivered nothing.
        ratio_ci95: Its 95 % interval, from the intervals of both as if they were independent; None likewise.
        settings: Settings that differ, as `num_workers 8 -> 12`.
        conditions: Machines, versions and workloads that differ; where there are any, rates are not comparable.
    """

    first: str
    second: str
    rates: tuple[Rate, Rate]
    ratio: Rate | None
    ratio_ci95: Interval | None
    settings: tuple[str, ...]
    conditions: tuple[str, ...]

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval of the ratio leaves 1 out."""
        if self.ratio_ci95 is None:
            return False
        low, high = self.ratio_ci95
        return not low <= 1 <= high


def compare_results(first: TunedProfile, second: TunedProfile) -> Comparison:
    """Compare a second result with a first."""
    rates = (first.result.samples_per_second, second.result.samples_per_second)
    ratio, interval = _divide(first.result, second.result)
    conditions = (
        *compare_hardware(first.hardware, second.hardware),
        *compare_software(first.software, second.software),
        *compare_workloads(first.workload, second.workload),
    )
    return Comparison(
        first=first.name,
        second=second.name,
        rates=rates,
        ratio=ratio,
        ratio_ci95=interval,
        settings=_list_settings(first, second),
        conditions=tuple(difference.describe() for difference in conditions),
    )


def _divide(first: ProfileResult, second: ProfileResult) -> tuple[float | None, Interval | None]:
    """Divide the throughput of the second by that of the first, and give the 95 % interval of the ratio."""
    if not first.samples_per_second or not second.samples_per_second:
        return None, None
    ratio = math.log(second.samples_per_second) - math.log(first.samples_per_second)
    width = math.hypot(log_half_width(first.samples_per_second_ci95), log_half_width(second.samples_per_second_ci95))
    return _raise(ratio), (_raise(ratio - width), _raise(ratio + width))


def _raise(log: float) -> float:
    return math.exp(min(log, MAX_LOG))


def log_half_width(interval: Interval | None) -> float:
    """Give the half-width of a 95 % interval on the logarithmic scale, or a usual one for what was never confirmed."""
    if interval is None or interval[0] <= 0:
        return UNCONFIRMED_CI_HALF_WIDTH
    return (math.log(interval[1]) - math.log(interval[0])) / 2


def _list_settings(first: TunedProfile, second: TunedProfile) -> tuple[str, ...]:
    before = first.config.by_name()
    after = second.config.by_name()
    names = {**before, **after}
    return tuple(
        f"{name} {before.get(name)} -> {after.get(name)}" for name in names if before.get(name) != after.get(name)
    )
