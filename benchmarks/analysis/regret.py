"""Is the choice as good as the best of the grid? Compared round by round, so that luck does not decide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autotune.settings import describe_config
from benchmarks.analysis.verdicts import Verdict, cover, find_median, format_rows, format_share, format_value, say_yes
from benchmarks.records import Entrant, WorkloadResult

MIN_SHARE: Final = 0.97  # of the grid's best, on every workload
MIN_MEDIAN_SHARE: Final = 0.99
MAX_TIE_COST: Final = 0.02


@dataclass(frozen=True, slots=True)
class Regret:
    """What the choice gives against the best of the grid; None for what was not measured."""

    workload: str
    choice: str
    share: float  # its throughput as a share of the best's
    best: str  # the configuration that won the rounds
    share_of_winner: float  # its throughput as a share of that one's median, which won by luck as well
    tie_cost: float | None  # what is lost against the best of the search
    sibling_share: float | None  # of the better of itself and a hand's with as many workers
    promise_error: float | None  # relative
    is_promise_kept: bool | None  # whether the predicted interval holds the truth


def measure_share(entrant: Entrant, finalists: Sequence[Entrant]) -> float:
    """Compare a configuration with the best of others, round by round.

    In each round the best is the one that was best in the screening and the *other* rounds: whoever is picked for its
    luck has to do without it where it counts. The answer is the median of the ratios.
    """
    ratios = []
    for number, rate in enumerate(entrant.rates):
        rivals = [rival for rival in finalists if len(rival.runs) > number]
        picked = max(rivals, key=lambda rival: _recall(rival, number))
        ratios.append(rate / picked.rates[number])
    return statistics.median(ratios)


def _recall(entrant: Entrant, left_out: int) -> float:
    others = [rate for number, rate in enumerate(entrant.rates) if number != left_out]
    return statistics.median([*others, entrant.screened])


def list_finalists(result: WorkloadResult) -> list[Entrant]:
    """List the best of the grid, with their whole runs; all that was trained where no grid was looked at."""
    trained = [entrant for entrant in result.entrants if entrant.runs]
    return [one for one in trained if not result.grid or any("grid" in label for label in one.labels)]


def measure_regret(result: WorkloadResult) -> Regret | None:
    """Compare dltune's choice with the best of the grid; None where one of them has no whole run."""
    choice, tuning, finalists = result.find_entrant("dltune"), result.find_tuning("dltune"), list_finalists(result)
    if choice is None or tuning is None or not finalists:
        return None
    true = statistics.median(choice.rates)
    winner = max(finalists, key=lambda entrant: statistics.median(entrant.rates))
    top = result.find_entrant("search")
    return Regret(
        workload=result.workload,
        choice=describe_config(choice.config),
        share=measure_share(choice, finalists),
        best=describe_config(winner.config),
        share_of_winner=true / statistics.median(winner.rates),
        tie_cost=None if top is None else max(0.0, 1 - measure_share(choice, [top])),
        sibling_share=_compare_with_sibling(choice, result),
        promise_error=None if tuning.promise is None else tuning.promise / true - 1,
        is_promise_kept=None if tuning.interval is None else tuning.interval[0] <= true <= tuning.interval[1],
    )


def _compare_with_sibling(choice: Entrant, result: WorkloadResult) -> float | None:
    sibling = result.find_entrant("sibling")
    if sibling is None:
        return None
    return 1.0 if sibling.config == choice.config else min(1.0, measure_share(choice, [sibling]))


def judge_regret(regrets: Sequence[Regret]) -> list[Verdict]:
    """Hold the choices against their targets; at least one is needed."""
    worst = min(regrets, key=lambda regret: regret.share)
    middle = statistics.median(regret.share for regret in regrets)
    tie_cost, dearest = max(
        ((regret.tie_cost, regret.workload) for regret in regrets if regret.tie_cost is not None), default=(None, "")
    )
    sibling = min((regret.sibling_share for regret in regrets if regret.sibling_share is not None), default=None)
    against, many = "choice against", f"{len(regrets)} workloads"
    return [
        Verdict(f"{against} the grid's best, worst workload", worst.share, "%", MIN_SHARE, "at least", worst.workload),
        Verdict(f"{against} the grid's best, median", middle, "%", MIN_MEDIAN_SHARE, "at least", many),
        Verdict("cost of taking the smallest of ties, worst workload", tie_cost, "%", MAX_TIE_COST, detail=dearest),
        Verdict(f"{against} its conventional sibling, worst workload", sibling, "%", MIN_SHARE, "at least"),
        *_judge_promises(regrets),
    ]


def _judge_promises(regrets: Sequence[Regret]) -> list[Verdict]:
    errors = [abs(regret.promise_error) for regret in regrets if regret.promise_error is not None]
    kept = [regret.is_promise_kept for regret in regrets if regret.is_promise_kept is not None]
    detail = "taken minutes before the whole runs"
    return [
        Verdict("promise of the tuning run, median error", find_median(errors), "%", detail=detail),
        cover("promised interval holds the truth", kept, None),
    ]


def tabulate_regrets(regrets: Sequence[Regret]) -> str:
    """Lay the choices out, one workload a row."""
    return format_rows(
        {
            "workload": regret.workload,
            "choice": regret.choice,
            "of the best": format_value(regret.share, "%"),
            "best of the grid": regret.best,
            "of that one's median": format_value(regret.share_of_winner, "%"),
            "tie cost": format_share(regret.tie_cost),
            "promise": "-" if regret.promise_error is None else f"{regret.promise_error:+.1%}",
            "kept": say_yes(regret.is_promise_kept),
        }
        for regret in regrets
    )
