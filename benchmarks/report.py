"""Turns what a benchmark wrote down into tables: fidelity, regret, time, peers, footprint, each against its target.

python -m benchmarks.report [--results FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from autotune.profiles.store import write_atomically
from benchmarks.analysis.busy import DeviceUse, list_uses, tabulate_uses
from benchmarks.analysis.comparison import Comparison, compare_peers, tabulate_comparisons
from benchmarks.analysis.fidelity import MIN_PAIRS, Pair, judge_fidelity, pair_up, tabulate_pairs
from benchmarks.analysis.footprint import FOOTPRINT_FILE, read_verdicts
from benchmarks.analysis.pace import Pace, judge_pace, measure_pace, tabulate_paces
from benchmarks.analysis.regret import Regret, judge_regret, measure_regret, tabulate_regrets
from benchmarks.analysis.verdicts import Verdict, format_verdicts
from benchmarks.records import TunerName, WorkloadResult, read_results
from benchmarks.workloads.catalogue import WORKLOADS

PEERS: Final[tuple[TunerName, ...]] = ("dltune", "random", "loadtune", "hand")
DEVICE_PEERS: Final[tuple[TunerName, ...]] = ("dltune", "defaults", "hand", "loadtune")
MIN_DEVICE_PAIRS: Final = 8


@dataclass(frozen=True, slots=True)
class Findings:
    """What the results of one folder say; `on_device` tells which of the two suites they are of."""

    results: list[WorkloadResult]
    on_device: bool
    pairs: list[Pair]
    regrets: list[Regret]
    paces: list[Pace]
    comparisons: list[Comparison]
    uses: list[DeviceUse]

    @classmethod
    def of(cls, results: list[WorkloadResult]) -> Self:
        """Derive them."""
        on_device = results[0].device is not None
        return cls(
            results=results,
            on_device=on_device,
            pairs=[pair for result in results for pair in pair_up(result)],
            regrets=[regret for result in results if (regret := measure_regret(result)) is not None],
            paces=[pace for result in results if not on_device and (pace := measure_pace(result)) is not None],
            comparisons=[compare_peers(result, DEVICE_PEERS if on_device else PEERS) for result in results],
            uses=[use for result in results for use in list_uses(result)],
        )

    def judge(self, folder: Path) -> dict[str, list[Verdict]]:
        """Hold them against their targets, by topic."""
        fidelity = judge_fidelity(self.pairs, MIN_DEVICE_PAIRS if self.on_device else MIN_PAIRS) if self.pairs else []
        regret = judge_regret(self.regrets) if self.regrets else []
        if self.on_device:
            topics = {"fidelity": fidelity, "regret": regret}
            return {topic: [line for line in lines if line.value is not None] for topic, lines in topics.items()}
        footprint = read_verdicts(folder / FOOTPRINT_FILE)
        return {"fidelity": fidelity, "regret": regret, "time": judge_pace(self.paces), "footprint": footprint}


def publish(folder: Path) -> None:
    """Print the tables of all results in a folder, and write them down as its summary.json."""
    results = read_results(folder, (workload.name for workload in WORKLOADS))
    if not results:
        print(f"No results in {folder}.")
        return
    found = Findings.of(results)
    verdicts = found.judge(folder)
    _print_tables(found)
    for topic, lines in verdicts.items():
        if lines:
            print(f"\n## Targets: {topic}\n\n{format_verdicts(lines)}")
    summary: dict[str, Any] = {
        "sittings": [result.model_dump(mode="json", exclude={"tunings", "grid", "entrants"}) for result in results],
        "verdicts": {topic: [_dump(line) for line in lines] for topic, lines in verdicts.items()},
        "fidelity": [asdict(pair) | {"error": pair.error} for pair in found.pairs],
        "regret": [asdict(regret) for regret in found.regrets],
        "time": [asdict(pace) for pace in found.paces],
        "peers": [asdict(comparison) for comparison in found.comparisons],
        "uses": [asdict(use) for use in found.uses],
    }
    write_atomically(folder / "summary.json", json.dumps(summary, indent=1) + "\n")


def _dump(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {"verdict": verdict.describe()}


def _print_tables(found: Findings) -> None:
    if words := describe_runs(found.results):
        print(words)
    print(f"\n## Predictions and whole runs, samples/s\n\n{tabulate_pairs(found.pairs)}")
    print(f"\n## Choices against the best of the grid\n\n{tabulate_regrets(found.regrets)}")
    if not found.on_device:
        print(f"\n## Time\n\n{tabulate_paces(found.paces)}")
    peers = tabulate_comparisons(found.comparisons, DEVICE_PEERS if found.on_device else PEERS)
    print(f"\n## Share of the optimum, and minutes of tuning\n\n{peers}")
    if notes := [f"{result.workload}: {result.peer_note}" for result in found.results if result.peer_note]:
        print(f"\n{'; '.join(notes)}")
    if found.uses:
        print(f"\n## How busy the device was\n\n{tabulate_uses(found.uses)}")
        print("\nBy events: all but the time it waited between steps; a copy that is part of the step counts as busy.")
        print("By NVML: share of moments in which any kernel ran.")


def describe_runs(results: Sequence[WorkloadResult]) -> str:
    """Say what was measured on which device, and what was left out."""
    lines = []
    if rehearsed := [result.workload for result in results if result.quick]:
        lines.append(f"\nRehearsals, whose numbers say nothing: {', '.join(rehearsed)}")
    lines += list(dict.fromkeys(f"\n{_describe_device(result)}" for result in results if result.device is not None))
    for result in results:
        if result.device is not None or result.dropped:
            lines.append(f"- {result.workload}: rounds {result.rounds}, {result.seconds:.0f} s, {result.date}")
        lines += [f"  {words}" for words in result.dropped]
    return "\n".join(lines)


def _describe_device(result: WorkloadResult) -> str:
    device = result.device
    assert device is not None
    known = {"CUDA": device.cuda, "driver": device.driver, "link": device.pcie, "Python": device.python}
    versions = [f"{name} {value}" for name, value in {"torch": device.torch, **known}.items() if value]
    return f"{device.name}, {result.cpus} CPUs, {', '.join(versions)}"


def main() -> None:
    """Print the tables of what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    publish(parser.parse_args().results)


if __name__ == "__main__":
    main()
