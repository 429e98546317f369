"""Compares configurations by their runs in the validation and by the trials of the search.

A setting that changes training, or that is not a default, must gain for certain. Runs of a few seconds differ by up to
10%, so a few of them rarely prove a gain of 10%. The trials of the search, which measured the setting with several
numbers of workers, are about as much evidence again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from autotune.config import Interval
from autotune.protocol.statistics import combine_ratio, paired_ratio, widen
from autotune.search.plan import Plan
from autotune.validation.candidate_runs import CandidateRuns

if TYPE_CHECKING:  # it imports Optuna, which `dltune check` does not need
    from autotune.search.surrogate import Surrogate

MIN_SPEEDUP: Final = 1.02  # over the baseline or over unchanged training; a smaller one is no gain


class Comparison:
    """Compares the candidates of one validation.

    Args:
        field: All of them: they show the noise, and the best of so many is selected.
        surrogate: What the search expects of them; None without a search.
    """

    def __init__(self, field: Sequence[CandidateRuns] = (), surrogate: Surrogate | None = None) -> None:
        self._field, self._surrogate = field, surrogate

    def rate(self, one: CandidateRuns) -> float:
        """Return the geometric mean of measured and expected samples per second, to rank candidates by."""
        if self._surrogate is None:
            return one.rate
        return math.sqrt(one.rate * self._surrogate.predict([one.config])[0])

    def speedup(self, one: CandidateRuns, other: CandidateRuns, looks: int = 1) -> tuple[float, Interval | None]:
        """Compute the median ratio over the runs of both, and its 95% interval as in `CandidateRuns.ci95`.

        `looks` is how often the interval may be looked at before runs end (Bonferroni correction).
        """
        field, picked_of = self._field, looks * max(1, len(self._field))
        numbers = [number for number in one.rates if number in other.rates]
        if not numbers:
            return one.rate / other.rate, None
        if len(other.rates) == 1:  # no ratio shows how much runs vary, the rates of the field do
            return paired_ratio([one.rate], [other.rate], picked_of, [list(each.rates.values()) for each in field])
        competing, bases = (each.rates for each in field if each not in {one, other}), other.rates
        scatter = [[rate / bases[number] for number, rate in rates.items() if number in bases] for rates in competing]
        values, others = ([each.rates[number] for number in numbers] for each in (one, other))
        return paired_ratio(values, others, picked_of, scatter)

    def report_speedup(self, one: CandidateRuns, other: CandidateRuns) -> tuple[float, Interval | None]:
        """Compute the speedup with an interval that includes the sampling errors of both."""
        speedup, interval = self.speedup(one, other)
        return speedup, widen(interval, math.hypot(one.sampling_error, other.sampling_error))

    def gain(self, one: CandidateRuns, other: CandidateRuns, looks: int = 1) -> tuple[float, Interval | None]:
        """Compute what settings gain over others, and its 95% interval: the speedup, combined with the expected one."""
        speedup, interval = self.speedup(one, other, looks)
        if self._surrogate is None or interval is None:
            return speedup, interval
        expected, error = self._surrogate.predict_speedups([other.config, one.config])[0]
        return combine_ratio(speedup, interval, expected, error, looks * max(1, len(self._field)))

    def is_faster(self, one: CandidateRuns, baseline: CandidateRuns) -> bool:
        """Return whether one is faster than the baseline for certain, or in the only run of both."""
        speedup, interval = self.speedup(one, baseline)
        return speedup >= MIN_SPEEDUP and (interval is None or interval[0] > 1)

    def is_gain(
        self, one: CandidateRuns, other: CandidateRuns, min_gain: float = MIN_SPEEDUP, floor: float = 1.0
    ) -> bool:
        """Return whether the gain reaches a minimum, and its interval lies above a floor."""
        gain, interval = self.gain(one, other)
        return gain >= min_gain and interval is not None and interval[0] > floor

    def list_alternatives(self, plan: Plan, one: CandidateRuns, others: Sequence[CandidateRuns]) -> list[CandidateRuns]:
        """List the alternative of one, that of its alternative, and so on to the fewest changes of the training."""
        found = self.find_alternative(plan, one, others)
        return [] if found is None else [found, *self.list_alternatives(plan, found, others)]

    def find_alternative(self, plan: Plan, one: CandidateRuns, others: Sequence[CandidateRuns]) -> CandidateRuns | None:
        """Return the fastest of the others that changes less of the training; None if there is none."""
        changes = len(plan.list_training_changes(one.config))
        fewer = (each for each in others if len(plan.list_training_changes(each.config)) < changes)
        return max(fewer, key=self.rate, default=None)
