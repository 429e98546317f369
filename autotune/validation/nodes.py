"""How far do equal machines differ, and where is another one of them to be expected?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.config import Interval
from autotune.profiles.nodes import NodeReading, NodeSpread
from autotune.profiles.schema import TunedProfile
from autotune.trial.statistics import ROUND_SPREAD, ROUND_WEIGHT, blend_spread

MAX_READINGS: Final = 64  # of machines; more tell no more of how far they differ


def add_reading(profile: TunedProfile, reading: NodeReading) -> TunedProfile:
    """Add what one machine reached, in place of what it had reached before, to what is known of machines like it."""
    before = () if profile.nodes is None else profile.nodes.readings
    readings = (*(one for one in before if one.node != reading.node), reading)[-MAX_READINGS:]
    rates = [one.samples_per_second for one in readings]
    interval = expect_another([profile.result.samples_per_second, *rates], profile.result.samples_per_second_ci95)
    return profile.model_copy(update={"nodes": NodeSpread(readings=readings, samples_per_second_ci95=interval)})


def expect_another(rates: Sequence[float], tuned_ci95: Interval | None) -> Interval:
    """Give the 95 % prediction interval for a machine like some that were measured.

    It is that of one more draw from a normal distribution of logarithms (Gelman et al., Bayesian Data Analysis, section
    3.2), and holds the interval of the one that was tuned on.

    Args:
        rates: Samples per second of at least two machines, each above zero.
        tuned_ci95: Interval of the one that was tuned on; None without.

    Returns:
        The interval, in samples per second.
    """
    logs = [math.log(rate) for rate in rates]
    spread, quantile = blend_spread(logs, ROUND_SPREAD, ROUND_WEIGHT)
    half = quantile * spread * math.sqrt(1 + 1 / len(logs))
    center = statistics.fmean(logs)
    low, high = math.exp(center - half), math.exp(center + half)
    return (low, high) if tuned_ci95 is None else (min(low, tuned_ci95[0]), max(high, tuned_ci95[1]))
