"""Turns what the GPU benchmark wrote down into tables.

python -m benchmarks.gpu_report [--results FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from autotune.config import FrozenModel
from autotune.knobs import describe_config
from benchmarks.comparison import compare_peers, tabulate_comparisons
from benchmarks.fidelity import Pair, judge_fidelity, pair_up, tabulate_pairs
from benchmarks.gpu_records import GpuEntrant, GpuResult
from benchmarks.gpu_workloads import WORKLOADS
from benchmarks.records import TunerName, read_results, write_text
from benchmarks.regret import Regret, judge_regret, measure_regret, tabulate_regrets
from benchmarks.verdicts import Verdict, format_share, format_table, format_verdicts

PEERS: Final[tuple[TunerName, ...]] = ("dltune", "defaults", "hand", "loadtune")
FEWEST_PAIRS: Final = 8


class Use(FrozenModel):
    """How busy the device was before and after.

    Attributes:
        workload: Name of the workload.
        label: Whose configuration it is.
        config: The configuration, in words.
        samples_per_second: Median of its whole runs.
        busy_share: Share of the time in which the device did not wait for data, by events.
        utilization: Share of moments in which it computed anything, by NVML; None without NVML.
    """

    workload: str
    label: str
    config: str
    samples_per_second: float
    busy_share: float
    utilization: float | None


def list_uses(result: GpuResult) -> list[Use]:
    """Tell how busy the device was at PyTorch's defaults, at a hand setting and at dltune's choice."""
    found = []
    for label in ("defaults", "hand", "dltune"):
        entrant = result.find_entrant(label)
        if isinstance(entrant, GpuEntrant):
            found.append(
                Use(
                    workload=result.workload,
                    label=label,
                    config=describe_config(entrant.config),
                    samples_per_second=statistics.median(entrant.rates),
                    busy_share=entrant.busy_share,
                    utilization=entrant.utilization,
                )
            )
    return found


def tabulate_uses(uses: Sequence[Use]) -> str:
    """Lay them out, one a row, each with its gain over PyTorch's defaults."""
    defaults = {use.workload: use.samples_per_second for use in uses if use.label == "defaults"}
    head = ("workload", "who", "configuration", "samples/s", "gain", "busy by events", "by NVML")
    rows = [
        (
            use.workload,
            use.label,
            use.config,
            f"{use.samples_per_second:,.0f}",
            f"{use.samples_per_second / defaults[use.workload]:.2f}x" if use.workload in defaults else "-",
            format_share(use.busy_share),
            format_share(use.utilization),
        )
        for use in uses
    ]
    return format_table(head, rows)


def publish(folder: Path) -> None:
    """Print the tables of all results in a folder, and write them down as its summary.json.

    Args:
        folder: Where results lie.
    """
    results = read_results(folder, (workload.name for workload in WORKLOADS), GpuResult)
    if not results:
        print(f"No results in {folder}.")
        return
    pairs = [pair for result in results for pair in pair_up(result)]
    regrets = [regret for result in results if (regret := measure_regret(result)) is not None]
    uses = [use for result in results for use in list_uses(result)]
    print(describe_sittings(results))
    _print_tables(results, pairs, regrets, uses)
    verdicts = _judge(pairs, regrets)
    print(f"\n## Targets\n\n{format_verdicts(verdicts)}")
    summary: dict[str, Any] = {
        "sittings": [result.model_dump(mode="json", exclude={"tunings", "grid", "entrants"}) for result in results],
        "verdicts": [line.model_dump(mode="json") | {"verdict": line.describe()} for line in verdicts],
        "fidelity": [pair.model_dump(mode="json") | {"error": pair.error} for pair in pairs],
        "regret": [regret.model_dump(mode="json") for regret in regrets],
        "uses": [use.model_dump(mode="json") for use in uses],
        "peers": [compare_peers(result, PEERS).model_dump(mode="json") for result in results],
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def _judge(pairs: Sequence[Pair], regrets: Sequence[Regret]) -> list[Verdict]:
    fidelity = judge_fidelity(pairs, FEWEST_PAIRS) if pairs else []
    verdicts = [*fidelity, *(judge_regret(regrets) if regrets else [])]
    return [verdict for verdict in verdicts if verdict.value is not None]


def describe_sittings(results: Sequence[GpuResult]) -> str:
    """Say what was measured, on what, and what was left out."""
    lines = []
    if rehearsed := [result.workload for result in results if result.quick]:
        lines.append(f"\nRehearsals, whose numbers say nothing: {', '.join(rehearsed)}")
    lines += list(dict.fromkeys(f"\n{_describe_machine(result)}" for result in results))
    for result in results:
        lines.append(f"- {result.workload}: rounds {result.rounds}, {result.seconds:.0f} s, {result.date}")
        lines += [f"  {words}" for words in result.dropped]
    return "\n".join(lines)


def _describe_machine(result: GpuResult) -> str:
    device = result.device
    known = {"CUDA": device.cuda, "driver": device.driver, "link": device.pcie, "Python": device.python}
    versions = [f"{name} {value}" for name, value in {"torch": device.torch, **known}.items() if value]
    return f"{device.name}, {result.cpus} CPUs, {', '.join(versions)}"


def _print_tables(
    results: Sequence[GpuResult], pairs: Sequence[Pair], regrets: Sequence[Regret], uses: Sequence[Use]
) -> None:
    comparisons = [compare_peers(result, PEERS) for result in results]
    print(f"\n## Predictions and whole runs, samples/s\n\n{tabulate_pairs(pairs)}")
    print(f"\n## Choices against the best of the grid\n\n{tabulate_regrets(regrets)}")
    print(f"\n## Share of the optimum, and minutes of tuning\n\n{tabulate_comparisons(comparisons, PEERS)}")
    if notes := [f"{result.workload}: {result.peer_note}" for result in results if result.peer_note]:
        print(f"\n{'; '.join(notes)}")
    print(f"\n## How busy the device was\n\n{tabulate_uses(uses)}")
    print("\nBy events: all but the time it waited between steps; a copy that is part of the step counts as busy.")
    print("By NVML: share of moments in which any kernel ran.")


def main() -> None:
    """Print the tables of what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/gpu"))
    publish(parser.parse_args().results)


if __name__ == "__main__":
    main()
