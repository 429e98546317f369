"""95% intervals of throughputs and their ratios, from a few runs in fresh processes.

The sample variance is shrunk towards a prior, and the level is Bonferroni-corrected for selecting the best of several.
`python -m benchmarks.coverage` measures the coverage by simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.config import CONFIDENCE, Interval

ROUND_SPREAD: Final = 0.045  # prior of the relative spread of whole runs in fresh processes; measured 1% to 9%
PAIR_SPREAD: Final = 0.033  # the same for runs that alternate with those they are compared with; measured in 57 pairs
ROUND_WEIGHT: Final = 2  # degrees of freedom of the prior
OTHERS_WEIGHT: Final = 0.5  # of each degree of freedom of other configurations: their spread is similar, not equal
TRAINING_SHARE: Final = 0.25  # of the variance of a run, by which the training itself varies
TAIL: Final = (1 - CONFIDENCE) / 2  # probability on either side of an interval
NORMAL_QUANTILE: Final = statistics.NormalDist().inv_cdf(1 - TAIL)  # half-width of an interval, standard deviations


def student_t(degrees: float, tail: float = TAIL) -> float:
    """Return the upper quantile of Student's t for a tail probability.

    Expansion in powers of 1/degrees from the normal quantile (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 26.7.5). For tails of 0.025 and 0.0025, it is 0.7% and 7% too low with 2 degrees of freedom, 0.1% and
    1.4% with 3, and 0.03% and 0.4% with 4.
    """
    z = statistics.NormalDist().inv_cdf(1 - tail)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


def blend_spread(
    values: Sequence[float], usual_spread: float, weight: float, tail: float = TAIL
) -> tuple[float, float]:
    """Return the standard deviation of one value, and its quantile of Student's t, under a prior of the spread.

    The prior is scaled inverse chi-squared with `weight` degrees of freedom (Gelman, Bayesian Data Analysis, 2.6).
    """
    squares, degrees = _sum_squares([values])
    return math.sqrt((weight * usual_spread**2 + squares) / (weight + degrees)), student_t(weight + degrees, tail)


def throughput_ci95(
    rates: Sequence[float], picked_of: int = 1, others: Sequence[Sequence[float]] = ()
) -> Interval | None:
    """Return the 95% interval of the throughput of a training run from repeated runs.

    The runs are the best of `picked_of` configurations (Bonferroni correction). The spread of `others`, groups of other
    throughputs on the same machine, informs the prior. The interval of a single run is None unless they show how much
    runs vary.
    """
    return _log_interval([math.log(rate) for rate in rates], ROUND_SPREAD, picked_of, others, TRAINING_SHARE)


def paired_ratio(
    values: Sequence[float], bases: Sequence[float], picked_of: int = 1, others: Sequence[Sequence[float]] = ()
) -> tuple[float, Interval | None]:
    """Return the median ratio of two configurations measured in alternating runs, and its 95% interval.

    `others` are ratios of other configurations to the same base; `picked_of` is as in `throughput_ci95`. The interval
    of a single pair is None unless they show how much runs vary.
    """
    logs = [math.log(value / base) for value, base in zip(values, bases, strict=True)]
    return math.exp(statistics.median(logs)), _log_interval(logs, math.sqrt(2) * PAIR_SPREAD, picked_of, others)


def widen(interval: Interval | None, error: float) -> Interval | None:
    """Add an independent relative error, the half-width of a 95% interval, to an interval if there is one."""
    if interval is None:
        return None
    low, high = (math.log(end) for end in interval)
    center, half = (low + high) / 2, math.hypot((high - low) / 2, math.log1p(error))
    return math.exp(center - half), math.exp(center + half)


def combine_ratio(
    ratio: float, interval: Interval, expected: float, error: float, picked_of: int = 1
) -> tuple[float, Interval]:
    """Combine a ratio and its interval with an independent estimate and its relative standard deviation, by precision.

    The ratio of few runs is a median, which weighs as the center of its interval.
    """
    low, high = (math.log(end) for end in interval)
    own, other = (high - low) / 2, error * statistics.NormalDist().inv_cdf(1 - TAIL / max(1, picked_of))
    share = other**2 / (own**2 + other**2)
    center = share * (low + high) / 2 + (1 - share) * math.log(expected)
    half = math.sqrt(share) * own
    ratio = math.exp(share * math.log(ratio) + (1 - share) * math.log(expected))
    return ratio, (math.exp(center - half), math.exp(center + half))


def _sum_squares(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the sum of squared deviations from the group means, and its degrees of freedom."""
    large = [group for group in groups if len(group) > 1]
    degrees = [len(group) - 1 for group in large]
    squares = math.fsum(statistics.variance(group) * count for group, count in zip(large, degrees, strict=True))
    return squares, sum(degrees)


def _log_interval(
    logs: Sequence[float],
    usual_spread: float,
    picked_of: int,
    others: Sequence[Sequence[float]],
    added_share: float = 0.0,
) -> Interval | None:
    squares, degrees = _sum_squares([[math.log(value) for value in one] for one in others])
    if not logs or len(logs) + degrees < 2:
        return None
    weight = ROUND_WEIGHT + OTHERS_WEIGHT * degrees
    usual = math.sqrt((ROUND_WEIGHT * usual_spread**2 + OTHERS_WEIGHT * squares) / weight)
    spread, quantile = blend_spread(logs, usual, weight, TAIL / max(1, picked_of))
    half = quantile * spread * math.sqrt(1 / len(logs) + added_share)
    mean = statistics.fmean(logs)
    return math.exp(mean - half), math.exp(mean + half)
