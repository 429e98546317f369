"""Compares two results: what they set, and whether one is faster beyond the noise of both."""

from __future__ import annotations

import math
from typing import Final

from autotune.matching import compare_hardware, compare_software, compare_workloads
from autotune.schema import Interval, Rate, TunedConfig, Value
from autotune.units import format_rate

UNCONFIRMED: Final = 0.1  # relative half-width of a throughput that was never confirmed


class Comparison(Value):
    """How a second result differs from a first.

    Attributes:
        first: Name of the first.
        second: Name of the second.
        rates: Samples per second of both.
        ratio: Throughput of the second over that of the first.
        ratio_ci95: Its 95 % interval, from the intervals of both as if they were independent.
        settings: Settings that differ, as `num_workers 8 -> 12`.
        conditions: Machines, versions and workloads that differ; where there are any, rates are not comparable.
    """

    first: str
    second: str
    rates: tuple[Rate, Rate]
    ratio: Rate
    ratio_ci95: Interval
    settings: tuple[str, ...]
    conditions: tuple[str, ...]

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval of the ratio leaves 1 out."""
        low, high = self.ratio_ci95
        return not low <= 1 <= high


def compare_results(first: TunedConfig, second: TunedConfig) -> Comparison:
    """Compare two results.

    Args:
        first: What is compared with.
        second: What is compared.

    Returns:
        The differences.
    """
    rates = (first.result.samples_per_second, second.result.samples_per_second)
    ratio = rates[1] / rates[0] if rates[0] else math.inf
    width = math.hypot(_relative_width(first), _relative_width(second))
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
        ratio_ci95=(ratio * math.exp(-width), ratio * math.exp(width)),
        settings=_list_settings(first, second),
        conditions=tuple(difference.describe() for difference in conditions),
    )


def _relative_width(result: TunedConfig) -> float:
    """Give the half-width of a throughput's 95 % interval on the logarithmic scale."""
    interval = result.result.samples_per_second_ci95
    if interval is None or interval[0] <= 0:
        return UNCONFIRMED
    return math.log(interval[1] / interval[0]) / 2


def _list_settings(first: TunedConfig, second: TunedConfig) -> tuple[str, ...]:
    before = first.dataloader.model_dump() | first.process.model_dump()
    after = second.dataloader.model_dump() | second.process.model_dump()
    return tuple(f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name])


def describe_comparison(found: Comparison) -> str:
    """Write a comparison for people.

    Args:
        found: The comparison.

    Returns:
        Lines: the verdict first, then what differs.
    """
    low, high = found.ratio_ci95
    rates = f"{format_rate(found.rates[0])} -> {format_rate(found.rates[1])}"
    ratio = f"{found.ratio:.2f} [{low:.2f}-{high:.2f}] times as fast"
    verdict = ratio if found.is_beyond_noise else f"no difference beyond noise: {ratio}"
    lines = [f"{found.first} -> {found.second}: {rates}, {verdict}"]
    lines += [f"  {setting}" for setting in found.settings] or ["  the same settings"]
    if found.conditions:
        lines.append(f"  not measured alike: {'; '.join(found.conditions)}")
    return "\n".join(lines)
