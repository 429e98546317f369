"""How sure are we? 95% intervals of throughputs and of their ratios, from a few rounds in processes of their own.

Three rounds that happen to agree do not make a machine quiet, so their spread is blended with a usual one. And whoever
was picked for being the best of several was also lucky: an interval that is to hold for whichever is picked is wider.
`python -m benchmarks.coverage` shows by simulation how often they hold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.config import CONFIDENCE, Interval

ROUND_SPREAD: Final = 0.03  # relative spread of whole runs of one configuration, each in its process; measured 1 to 9 %
ROUND_WEIGHT: Final = 3  # degrees of freedom that this counts for
OTHERS_WEIGHT: Final = 0.5  # of a degree of freedom of one's own: configurations scatter alike, but not the same
TAIL: Final = (1 - CONFIDENCE) / 2  # probability on either side of an interval
NORMAL_QUANTILE: Final = statistics.NormalDist().inv_cdf(1 - TAIL)  # half-width of an interval, standard deviations


def student_t(degrees: float, tail: float = TAIL) -> float:
    """Give an upper quantile of Student's t.

    Expansion in powers of 1/degrees from the normal quantile (Abramowitz and Stegun, Handbook of Mathematical
    Functions, 26.7.5); within 0.2% of the true one for the tails and degrees in use here.

    Args:
        degrees: Degrees of freedom, at least 3.
        tail: Probability above the quantile, between 0 and 0.5.

    Returns:
        The quantile.
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
    """Blend the spread of a few values with a usual one, as a scaled inverse chi-squared prior does.

    Source: Gelman et al., Bayesian Data Analysis, section 2.6.

    Args:
        values: At least one value.
        usual_spread: Standard deviation expected before any is seen, in their unit.
        weight: Degrees of freedom that the expectation counts for, at least 3.
        tail: Probability above the quantile.

    Returns:
        The standard deviation of one value, and the quantile of Student's t that goes with it.
    """
    squares, seen = _sum_squares([values])
    return math.sqrt((weight * usual_spread**2 + squares) / (weight + seen)), student_t(weight + seen, tail)


def throughput_ci95(
    rates: Sequence[float], picked_of: int = 1, others: Sequence[Sequence[float]] = ()
) -> Interval | None:
    """Give the 95% interval of a throughput from rounds in processes of their own; None for fewer than two.

    Args:
        rates: Throughput of each round, greater than zero.
        picked_of: How many it was the best of by these rounds; the interval holds for whichever is picked (Bonferroni).
        others: Rounds of other configurations on the same machine, whose spread tells what is usual here.
    """
    return _bound_logs(_take_logs(rates), ROUND_SPREAD, picked_of, [_take_logs(one) for one in others])


def paired_ratio(
    values: Sequence[float], bases: Sequence[float], picked_of: int = 1, others: Sequence[Sequence[float]] = ()
) -> tuple[float, Interval | None]:
    """Give the median ratio of two configurations measured in the same rounds, and its 95% interval, as above.

    Args:
        values: Throughputs of one, a round each, greater than zero.
        bases: Throughputs of the other, in the same rounds.
        picked_of: How many the first was the best of by these rounds.
        others: Ratios of other configurations to the same base, round by round.
    """
    logs = [math.log(value / base) for value, base in zip(values, bases, strict=True)]
    interval = _bound_logs(logs, math.sqrt(2) * ROUND_SPREAD, picked_of, [_take_logs(one) for one in others])
    return math.exp(statistics.median(logs)), interval


def _take_logs(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values]


def _sum_squares(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Sum the squared distances of values from the mean of their group, and count the degrees of freedom."""
    large = [group for group in groups if len(group) > 1]
    seen = [len(group) - 1 for group in large]
    squares = math.fsum(statistics.variance(group) * count for group, count in zip(large, seen, strict=True))
    return squares, sum(seen)


def _bound_logs(
    logs: Sequence[float], usual_spread: float, picked_of: int, others: Sequence[Sequence[float]]
) -> Interval | None:
    if len(logs) < 2:
        return None
    squares, seen = _sum_squares(others)
    weight = ROUND_WEIGHT + OTHERS_WEIGHT * seen
    usual = math.sqrt((ROUND_WEIGHT * usual_spread**2 + OTHERS_WEIGHT * squares) / weight)
    spread, quantile = blend_spread(logs, usual, weight, TAIL / max(1, picked_of))
    half = quantile * spread / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean - half), math.exp(mean + half)
