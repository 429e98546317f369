"""Writes tables from what benchmarks kept, by the code of the benchmarks that print them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import libraries, ranks, start_methods, timings
from benchmarks.analysis.comparison import tabulate_comparisons
from benchmarks.analysis.fidelity import find_quantile
from benchmarks.analysis.regret import tabulate_regrets
from benchmarks.analysis.verdicts import Verdict, format_table, format_verdicts
from benchmarks.records import read_results
from benchmarks.replay import Replayed
from benchmarks.report import PEERS, Findings
from benchmarks.workloads.catalogue import WORKLOADS

Kept = TypeVar("Kept")


def read_findings(folder: Path) -> Findings:
    """Read what one run of the suite kept."""
    return Findings.of(read_results(folder, (workload.name for workload in WORKLOADS)))


def write_headline(folder: Path) -> str:
    """Say how good choices and predictions of a run of the suite were, how fast, and how many targets it missed."""
    found = read_findings(folder)
    first, judged = found.results[0], _list_judged(folder)
    torch, missed = first.torch.partition("+")[0], sum(not verdict.is_reached for verdict in judged)
    shares = _span([regret.share for regret in found.regrets], ".0%")
    seconds = _span([pace.seconds for pace in found.paces], ".0f")
    by_hand = _span([one.shares["hand"] for one in found.comparisons if "hand" in one.shares], ".0%")
    errors = [abs(pair.error) for pair in found.pairs]
    middle, tail = (f"{find_quantile(errors, share):.1%}" for share in (0.5, 0.9))
    held = [pair.is_covered for pair in found.pairs if pair.is_covered is not None]
    lines = (
        f"Measured on {first.date[:10]}, on a virtual machine with {first.cpus} CPUs and no GPU, torch {torch}:",
        f"what dltune chose for {len(found.regrets)} workloads, in {seconds} s, trained at {shares}",
        f"of the best of a grid; as many workers as CPUs trained at {by_hand}.",
        f"Predictions were {middle} off whole training runs in the median and {tail} at the 90th percentile;",
        f"{sum(held)} of {len(held)} stated intervals held the truth. Of {len(judged)} targets {missed} were missed.",
    )
    return "\n".join(lines).replace("%", " %")


def _span(values: Sequence[float], style: str) -> str:
    return f"{min(values):{style}} to {max(values):{style}} (median {statistics.median(values):{style}})"


def tabulate_targets(folder: Path) -> str:
    """Lay out what a run of the suite measured that has a target, reached or missed."""
    return format_verdicts(_list_judged(folder))


def _list_judged(folder: Path) -> list[Verdict]:
    judged = [line for lines in read_findings(folder).judge(folder).values() for line in lines]
    return [line for line in judged if line.target is not None and line.value is not None]


def tabulate_choices(folder: Path) -> str:
    """Lay out each choice beside the best of the grid, or beside all that was trained where there was none."""
    return tabulate_regrets(read_findings(folder).regrets)


def tabulate_peers(folder: Path) -> str:
    """Lay out what each tuner's choice gives as a share of the best, and the minutes it took."""
    return tabulate_comparisons(read_findings(folder).comparisons, PEERS)


def tabulate_timings(file: Path) -> str:
    """Lay out where the seconds of each workload went."""
    return timings.tabulate(timings.TUNINGS.validate_json(file.read_bytes()))


def tabulate_samplers(file: Path) -> str:
    """Lay out what each sampler reached on the recorded grids, over all seeds."""
    runs = sorted((Replayed.model_validate(one) for one in _read(file)["runs"]), key=lambda run: run.sampler)
    rows = [_sum_up(sampler, list(group)) for sampler, group in groupby(runs, key=lambda run: run.sampler)]
    return format_table(("sampler", "runs", "of the best, mean", "worst run", "trials, mean"), rows)


def _sum_up(sampler: str, runs: Sequence[Replayed]) -> tuple[str, ...]:
    shares, trials = [run.share for run in runs], statistics.fmean(run.trials for run in runs)
    return sampler, str(len(runs)), f"{statistics.fmean(shares):.1%}", f"{min(shares):.1%}", f"{trials:.1f}"


def tabulate_libraries(file: Path) -> str:
    """Lay out predicted speed-ups of other libraries' loaders beside those of whole runs."""
    return "\n".join(libraries.describe(_validate(file, libraries.LibraryResult.model_validate)))


def tabulate_ranks(file: Path) -> str:
    """Lay out choices for several training processes beside the best of their grids."""
    return ranks.tabulate(_validate(file, ranks.RanksResult.model_validate))


def tabulate_start_methods(file: Path) -> str:
    """Lay out promises beside whole runs, by the way in which workers start."""
    return start_methods.tabulate(_validate(file, start_methods.MethodResult.model_validate))


def quote(file: Path) -> str:
    """Quote a file of text that a run wrote."""
    return f"```text\n{file.read_text().rstrip()}\n```"


def _validate(file: Path, read: Callable[[Any], Kept]) -> list[Kept]:
    return [read(one) for one in _read(file)]


def _read(file: Path) -> Any:
    return json.loads(file.read_text())
