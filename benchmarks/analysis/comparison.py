"""What would others have chosen, and in how many minutes?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.analysis.regret import list_finalists, measure_share
from benchmarks.analysis.verdicts import format_table
from benchmarks.records import Entrant, TunerName, Tuning, WorkloadResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """What each tuner's choice gives on a workload, as a share of the best of the grid, and the time it took."""

    workload: str
    shares: dict[str, float]
    seconds: dict[str, float]


def compare_peers(result: WorkloadResult, peers: Sequence[TunerName]) -> Comparison:
    """Tell what each tuner's choice gives; a choice that was too slow for a whole run is told by its screening."""
    finalists = list_finalists(result)
    shares: dict[str, float] = {}
    for tuner in peers:
        entrant = result.find_entrant(tuner)
        if entrant is not None and finalists:
            shares[tuner] = measure_share(entrant, finalists)
        elif (tuning := result.find_tuning(tuner)) is not None and finalists:
            shares[tuner] = _share_screened(tuning, result, finalists)
    return Comparison(
        workload=result.workload, shares=shares, seconds={tuning.tuner: tuning.seconds for tuning in result.tunings}
    )


def _share_screened(tuning: Tuning, result: WorkloadResult, finalists: Sequence[Entrant]) -> float:
    seen = next((seen.samples_per_second for seen in result.grid if seen.config == tuning.config), 0.0)
    return seen / max(statistics.median(entrant.rates) for entrant in finalists)


def tabulate_comparisons(comparisons: Sequence[Comparison], peers: Sequence[TunerName]) -> str:
    """Lay the tuners out beside each other, one workload a row, their medians last."""
    rows = [(comparison.workload, *(_compare(comparison, tuner) for tuner in peers)) for comparison in comparisons]
    return format_table(("workload", *peers), [*rows, ("median", *(_summarize(comparisons, tuner) for tuner in peers))])


def _compare(comparison: Comparison, tuner: TunerName) -> str:
    if tuner not in comparison.shares:
        return "-"
    return f"{comparison.shares[tuner]:.0%} in {comparison.seconds[tuner] / 60:.1f}"


def _summarize(comparisons: Sequence[Comparison], tuner: TunerName) -> str:
    found = [comparison for comparison in comparisons if tuner in comparison.shares]
    if not found:
        return "-"
    share = statistics.median(comparison.shares[tuner] for comparison in found)
    minutes = statistics.median(comparison.seconds[tuner] for comparison in found) / 60
    return f"{share:.0%} in {minutes:.1f}"
