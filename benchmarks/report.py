"""Turns what the suite wrote down into tables: fidelity, regret, time, peers, footprint, each against its target.

python -m benchmarks.report [--results FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import Comparison, compare_peers, tabulate_comparisons
from benchmarks.fidelity import Pair, judge_fidelity, pair_up, tabulate_pairs
from benchmarks.footprint import FOOTPRINT_FILE, read_verdicts
from benchmarks.pace import Pace, judge_pace, measure_pace, tabulate_paces
from benchmarks.records import WorkloadResult, read_results, write_text
from benchmarks.regret import Regret, judge_regret, measure_regret, tabulate_regrets
from benchmarks.verdicts import (
    Verdict,
    format_verdicts,
)
from benchmarks.workloads import WORKLOADS


def publish(folder: Path) -> None:
    """Print the tables of all results in a folder, and write them down as its summary.json.

    Args:
        folder: Where results lie.
    """
    results = read_results(folder, (workload.name for workload in WORKLOADS), WorkloadResult)
    if not results:
        print(f"No results in {folder}.")
        return
    pairs = [pair for result in results for pair in pair_up(result)]
    regrets = [regret for result in results if (regret := measure_regret(result)) is not None]
    paces = [pace for result in results if (pace := measure_pace(result)) is not None]
    comparisons = [compare_peers(result) for result in results]
    verdicts = {
        "fidelity": judge_fidelity(pairs) if pairs else [],
        "regret": judge_regret(regrets) if regrets else [],
        "time": judge_pace(paces),
        "footprint": read_verdicts(folder / FOOTPRINT_FILE),
    }
    _print_tables(results, pairs, regrets, paces, comparisons)
    for topic, lines in verdicts.items():
        if lines:
            print(f"\n## Targets: {topic}\n\n{format_verdicts(lines)}")
    summary: dict[str, Any] = {
        "sittings": [result.model_dump(mode="json", exclude={"tunings", "grid", "entrants"}) for result in results],
        "verdicts": {topic: [_dump(line) for line in lines] for topic, lines in verdicts.items()},
        "fidelity": [pair.model_dump(mode="json") | {"error": pair.error} for pair in pairs],
        "regret": [regret.model_dump(mode="json") for regret in regrets],
        "time": [pace.model_dump(mode="json") for pace in paces],
        "peers": [comparison.model_dump(mode="json") for comparison in comparisons],
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def _dump(verdict: Verdict) -> dict[str, Any]:
    return verdict.model_dump(mode="json") | {"verdict": verdict.describe()}


def _print_tables(
    results: Sequence[WorkloadResult],
    pairs: Sequence[Pair],
    regrets: Sequence[Regret],
    paces: Sequence[Pace],
    comparisons: Sequence[Comparison],
) -> None:
    if rehearsed := [result.workload for result in results if result.quick]:
        print(f"\nRehearsals, whose numbers say nothing: {', '.join(rehearsed)}")
    print(f"\n## Predictions and whole runs, samples/s\n\n{tabulate_pairs(pairs)}")
    print(f"\n## Choices against the best of the grid\n\n{tabulate_regrets(regrets)}")
    print(f"\n## Time\n\n{tabulate_paces(paces)}")
    print(f"\n## Share of the optimum, and minutes of tuning\n\n{tabulate_comparisons(comparisons)}")


def main() -> None:
    """Print the tables of what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    publish(parser.parse_args().results)


if __name__ == "__main__":
    main()
