"""How long does tuning take, how soon is a good configuration known, and what does dltune itself cost a trial?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.analysis.regret import list_finalists, measure_share
from benchmarks.analysis.verdicts import Verdict, format_rows, format_share
from benchmarks.records import WorkloadResult, list_own_costs
from benchmarks.screening import EARLY_SECONDS

MAX_TUNING_SECONDS: Final = 100.0
MIN_EARLY_SHARE: Final = 0.97
MAX_OWN_SECONDS: Final = 0.1  # a trial
TIMED_WORKLOAD: Final = "tutorial"  # the one whose time has a target


@dataclass(frozen=True, slots=True)
class Pace:
    """How long dltune took."""

    workload: str
    seconds: float
    trials: int  # configurations that it measured
    early_share: float | None  # what the best it knew early gives, as a share of the best of the grid
    own_seconds: float | None  # its own cost a trial after the first, mean
    ending_seconds: float | None  # of that inside the trial: messages, taking the workers down


def measure_pace(result: WorkloadResult) -> Pace | None:
    """Tell how long dltune took; None where it was not run."""
    tuning, early, finalists = result.find_tuning("dltune"), result.find_entrant("early"), list_finalists(result)
    if tuning is None:
        return None
    costs = list_own_costs(tuning.lines)
    return Pace(
        workload=result.workload,
        seconds=tuning.seconds,
        trials=sum(line.status == "measured" for line in tuning.lines),
        early_share=measure_share(early, finalists) if early is not None and finalists else None,
        own_seconds=statistics.fmean(own for own, _ in costs) if costs else None,
        ending_seconds=statistics.fmean(ending for _, ending in costs) if costs else None,
    )


def judge_pace(paces: Sequence[Pace]) -> list[Verdict]:
    """Hold the times against their targets, which are those of one workload."""
    pace = next((pace for pace in paces if pace.workload == TIMED_WORKLOAD), None)
    seconds, share, own = (pace.seconds, pace.early_share, pace.own_seconds) if pace else (None, None, None)
    early = sum(pace.early_share is not None and pace.early_share >= MIN_EARLY_SHARE for pace in paces)
    known = f"{TIMED_WORKLOAD}: best known after {EARLY_SECONDS:.0f} s, as a share of the optimum"
    cost = f"{TIMED_WORKLOAD}: own cost of a trial after the first, mean"
    trials = f"{pace.trials} trials until the search ended" if pace else ""
    reached = f"{early} of {len(paces)} workloads reach it"
    ending = f"{pace.ending_seconds:.3f} s of it end the trial" if pace and pace.ending_seconds else ""
    return [
        Verdict(f"{TIMED_WORKLOAD}: time for --trials 40", seconds, "s", MAX_TUNING_SECONDS, detail=trials),
        Verdict(known, share, "%", MIN_EARLY_SHARE, "at least", reached),
        Verdict(cost, own, "s", MAX_OWN_SECONDS, detail=ending),
    ]


def tabulate_paces(paces: Sequence[Pace]) -> str:
    """Lay the times out, one workload a row."""
    return format_rows(
        {
            "workload": pace.workload,
            "seconds": f"{pace.seconds:.0f}",
            "trials": str(pace.trials),
            f"share after {EARLY_SECONDS:.0f} s": format_share(pace.early_share),
            "own s/trial": "-" if pace.own_seconds is None else f"{pace.own_seconds:.3f}",
            "of it ending it": "-" if pace.ending_seconds is None else f"{pace.ending_seconds:.3f}",
        }
        for pace in paces
    )
