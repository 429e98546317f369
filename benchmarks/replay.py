"""Compares samplers on recorded grids: which one finds the best configuration with the fewest trials?

The search runs as in a real run, with the same seeds, limits and stopping rules for every sampler; the trace replaces
the child process. Each run sees one of two passes over the grid, with noise on top. The mean of both passes is the true
throughput, and picks among the candidates as the validation does. 100% is the throughput that the fastest configuration
of one pass reached in the other, without the luck of its selection; a run can reach a little more. The default sampler
and its constants were chosen on these grids.

    python -m benchmarks.replay [--seeds 10] [--samplers model gp tpe random]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args
from unittest.mock import patch

from autotune.config import FrozenModel, LoaderConfig
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.statistics import student_t
from autotune.request import SamplerName
from autotune.search.loop import Search
from autotune.search.study import TrialRecord
from autotune.validation.decision import select_candidates
from benchmarks.traces import TRACES, Trace, make_measurement

RESULTS: Final = Path("benchmarks/results/replay.json")
NOISE: Final = 0.03  # standard deviation of the throughput of a trial, relative
CHECKPOINTS: Final = (3, 5, 10, 20, 40)  # trials after which the best so far is judged
EPOCHS_SHOWN: Final = 3
BATCHES_SHOWN: Final = 16


class Replayed(FrozenModel):
    """One run of the search over a trace.

    Attributes:
        trace: Name of the grid.
        sampler: The sampler.
        seed: Seed of the sampler and the noise.
        trials: Number of trials that were measured.
        share: Throughput of the best candidate, as a share of the best configuration's.
        by_trials: The same of the best measured configuration after each trial.
        stop_reason: Why the search ended.
        prediction_error: Median relative difference between predictions and measurements.
    """

    trace: str
    sampler: str
    seed: int
    trials: int
    share: float
    by_trials: tuple[float, ...]
    stop_reason: str
    prediction_error: float

    def share_after(self, trials: int) -> float:
        """Return the share of the best measured configuration after so many trials, or at the end."""
        return self.by_trials[min(trials, self.trials) - 1]


def replay(trace: Trace, sampler: SamplerName, seed: int) -> Replayed:
    """Run the search over a trace; odd seeds see its second pass."""
    plan = trace.plan()
    plan = replace(plan, request=plan.request.model_copy(update={"sampler": sampler, "seed": seed}))
    rates = dict(zip(trace.configs, trace.passes[seed % 2], strict=True))
    noise = random.Random(seed)

    def run_trial(request: TrialRequest) -> TrialResult:
        rate = rates[request.config] * math.exp(noise.gauss(0.0, NOISE))
        if rate <= 0:
            return TrialResult(status="crashed", config=request.config, message="failed when it was recorded")
        size = request.config.dataloader.batch_size or 1
        epoch_seconds = BATCHES_SHOWN * size / rate
        measurement = make_measurement(BATCHES_SHOWN, size, max(1e-6, epoch_seconds), EPOCHS_SHOWN)
        return TrialResult(status="completed", config=request.config, measurement=measurement)

    found = Search(plan, run_trial, ProgressListener()).run()
    truth = {config: math.sqrt(one * two) for config, one, two in zip(trace.configs, *trace.passes, strict=True)}
    best = _find_best(trace)
    measured = [record for record in found.records if record.is_feasible]
    with patch.object(found.model, "is_allowed", truth.__contains__):  # what was recorded
        candidates = select_candidates(plan, found.records, found.model)
    return Replayed(
        trace=trace.name,
        sampler=sampler,
        seed=seed,
        trials=len(measured),
        share=max(truth[config] for config in candidates) / best,
        by_trials=tuple(_judge(measured[: count + 1], truth) / best for count in range(len(measured))),
        stop_reason=found.stop_reason,
        prediction_error=_measure_prediction_error(measured),
    )


def _measure_prediction_error(records: Sequence[TrialRecord]) -> float:
    errors = [abs(one.predicted / one.samples_per_second - 1) for one in records if one.is_feasible and one.predicted]
    return statistics.median(errors) if errors else 0.0


def _find_best(trace: Trace) -> float:
    """Return the throughput of the fastest configuration of each pass in the other, mean of the two."""
    first, second = trace.passes
    return (second[first.index(max(first))] + first[second.index(max(second))]) / 2


def _judge(records: Sequence[TrialRecord], truth: Mapping[LoaderConfig, float]) -> float:
    return truth[max(records, key=lambda record: record.samples_per_second).config]


def print_table(runs: Sequence[Replayed]) -> None:
    """Print a line for each trace and sampler, and one for each sampler over all.

    `equal trials` is the best measured configuration after as many trials as `model` took with the same trace and seed.
    """
    checkpoints = "  ".join(f"{count:>4}" for count in CHECKPOINTS)
    print(
        f"{'trace':12} {'sampler':8} {'candidates, mean [95%]':>24} {'worst':>6} {'trials':>7}"
        f"  {'equal trials, mean, worst':>25}  after {checkpoints} trials"
    )
    budget = {(run.trace, run.seed): run.trials for run in runs if run.sampler == "model"}
    for name in [*dict.fromkeys(run.trace for run in runs), "all"]:
        for sampler in dict.fromkeys(run.sampler for run in runs):
            chosen = [run for run in runs if run.sampler == sampler and name in (run.trace, "all")]
            equal = [run.share_after(budget.get((run.trace, run.seed), run.trials)) for run in chosen]
            print(_describe(name, sampler, chosen, equal))


def _describe(name: str, sampler: str, runs: Sequence[Replayed], equal: Sequence[float]) -> str:
    shares = [run.share for run in runs]
    mean = statistics.fmean(shares)
    half = student_t(len(shares) - 1) * statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 3 else 0.0
    choice = f"{mean:.1%} [{mean - half:.1%}-{mean + half:.1%}]"
    early = "  ".join(f"{statistics.fmean(run.share_after(count) for run in runs):4.0%}" for count in CHECKPOINTS)
    trials = statistics.fmean(run.trials for run in runs)
    at_equal = f"{statistics.fmean(equal):.1%}  {min(equal):6.1%}"
    return f"{name:12} {sampler:8} {choice:>24} {min(shares):6.1%} {trials:7.1f}  {at_equal:>25}        {early}"


def read_traces(folder: Path = TRACES) -> list[Trace]:
    """Read all recorded grids."""
    return [Trace.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.json"))]


def main() -> None:
    """Replay all traces with all samplers, print the table and store the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    samplers = [name for name in get_args(SamplerName) if name != "gp" or importlib.util.find_spec("scipy")]
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", default=samplers, choices=get_args(SamplerName))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    started = time.monotonic()
    runs = [
        replay(trace, sampler, seed)
        for trace in read_traces()
        for sampler in options.samplers
        for seed in range(options.seeds)
    ]
    print_table(runs)
    summary = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "runs": [run.model_dump() for run in runs]}
    options.results.write_text(json.dumps(summary) + "\n")
    print(f"{len(runs)} runs in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
