"""Is a prediction what a whole training run then gives? Pairs of both, and what they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import Interval
from autotune.settings import describe_config
from autotune.trial.statistics import throughput_ci95
from benchmarks.analysis.verdicts import Verdict, cover, format_rows, say_yes
from benchmarks.records import Entrant, WorkloadResult

MIN_PAIRS: Final = 40
MAX_MEDIAN_ERROR: Final = 0.02
MAX_TAIL_ERROR: Final = 0.06  # at the 90th percentile
MIN_COVERAGE: Final = 0.90


@dataclass(frozen=True, slots=True)
class Pair:
    """A configuration's predictions beside its whole runs."""

    workload: str
    config: str
    labels: tuple[str, ...]
    epochs: int
    true: float  # samples per second, median of the whole runs
    spread: float  # largest less smallest whole run, as a share of the median
    predicted: float  # samples per second, median of the trials
    interval: Interval | None  # 95 %, as dltune states it for so many rounds
    trial_errors: tuple[float, ...]  # relative, of each trial on its own
    trials_covered: tuple[bool, ...]  # whether the interval of each trial that knew one holds the truth

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.true - 1

    @property
    def is_covered(self) -> bool | None:
        """Whether the stated interval holds the truth; None where none is stated."""
        return None if self.interval is None else self.interval[0] <= self.true <= self.interval[1]


def find_quantile(values: Sequence[float], share: float) -> float:
    """Give the value below which a share (0 to 1) of the values lies, by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def pair_up(result: WorkloadResult) -> list[Pair]:
    """Set predictions beside whole runs; configurations whose trials failed are left out."""
    return [_pair(result.workload, entrant) for entrant in result.entrants if entrant.runs and entrant.predicted_rates]


def _pair(workload: str, entrant: Entrant) -> Pair:
    true = statistics.median(entrant.rates)
    predicted = entrant.predicted_rates
    return Pair(
        workload=workload,
        config=describe_config(entrant.config),
        labels=entrant.labels,
        epochs=entrant.epochs,
        true=true,
        spread=(max(entrant.rates) - min(entrant.rates)) / true,
        predicted=statistics.median(predicted),
        interval=state_interval(entrant),
        trial_errors=tuple(rate / true - 1 for rate in predicted),
        trials_covered=tuple(
            abs(true / prediction.samples_per_second - 1) <= prediction.relative_error
            for prediction in entrant.predictions
            if prediction.relative_error is not None
        ),
    )


def state_interval(entrant: Entrant) -> Interval | None:
    """Give the interval that dltune would write down, had these predictions been the rounds of its confirmation."""
    return throughput_ci95(entrant.predicted_rates)


def judge_fidelity(pairs: Sequence[Pair], min_pairs: int = MIN_PAIRS) -> list[Verdict]:
    """Hold the predictions against their targets, medians of rounds first; at least one pair is needed."""
    errors = [abs(pair.error) for pair in pairs]
    singles = [abs(error) for pair in pairs for error in pair.trial_errors]
    covered = [pair.is_covered for pair in pairs if pair.is_covered is not None]
    singles_covered = [held for pair in pairs for held in pair.trials_covered]
    spread = statistics.median(pair.spread for pair in pairs)
    rounds = f"whole runs spread by {spread:.1%} in the median"
    single = f"{len(singles)} single trials"
    return [
        Verdict(what="pairs", value=len(pairs), unit="", target=min_pairs, sense="at least"),
        Verdict(what="median error", value=statistics.median(errors), unit="%", target=MAX_MEDIAN_ERROR, detail=rounds),
        Verdict(what="error, 90th percentile", value=find_quantile(errors, 0.9), unit="%", target=MAX_TAIL_ERROR),
        cover("stated interval holds the truth", covered, MIN_COVERAGE),
        Verdict(what="one trial: median error", value=statistics.median(singles), unit="%", detail=single),
        Verdict(what="one trial: error, 90th percentile", value=find_quantile(singles, 0.9), unit="%"),
        cover("one trial: its own interval holds the truth", singles_covered, None),
    ]


def tabulate_pairs(pairs: Sequence[Pair]) -> str:
    """Lay the pairs out, one a row."""
    return format_rows(
        {
            "workload": pair.workload,
            "configuration": pair.config,
            "why": ", ".join(pair.labels),
            "epochs": str(pair.epochs),
            "whole runs": f"{pair.true:,.0f}",
            "spread": f"{pair.spread:.1%}",
            "predicted": f"{pair.predicted:,.0f}",
            "error": f"{pair.error:+.1%}",
            "interval holds": say_yes(pair.is_covered),
        }
        for pair in pairs
    )
