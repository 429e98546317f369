"""Which sampler finds the best configuration with the fewest trials? Replays recorded grids, a run in a few moments.

The whole search runs as it would, with the trace in place of the child: seeds, screening, stopping and all. Each run
is fed by one of two passes over the grid, with noise on top. The mean of both passes stands for the truth, and for the
confirmation that picks among the finalists. 100 % is what the fastest configuration of one pass reached in the other,
which luck did not help; a run can reach a little more. The default sampler and its constants were chosen with these
grids in sight; what that does to the numbers, `holdout` tells.

    python -m benchmarks.replay [--seeds 10] [--samplers model tpe random ...]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import optuna

from autotune.config import FrozenModel, LoaderConfig
from autotune.progress import ProgressListener
from autotune.request import SamplerName
from autotune.search.ask_tell import Search
from autotune.search.loop import SearchLoop
from autotune.search.plan import Plan
from autotune.search.sampler import make_sampler
from autotune.search.trial_record import TrialRecord
from autotune.search.warm_start import WarmStart
from autotune.trial.measurement import Measurement, TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.trial.statistics import student_t
from autotune.validation.decision import select_finalists
from benchmarks.traces import TRACES, Trace, make_measurement

RESULTS: Final = Path("benchmarks/results/replay.json")
SAMPLERS: Final[tuple[SamplerName, ...]] = ("model", "tpe", "random")
NOISE: Final = 0.03  # standard deviation of a trial's throughput, relative
LOOKS: Final = (3, 5, 10, 20, 40)  # trials after which the best so far is judged
EPOCHS_SHOWN: Final = 3
BATCHES_SHOWN: Final = 16


class Replayed(FrozenModel):
    """One run of the search over a trace."""

    trace: str
    sampler: str
    seed: int  # of sampler and noise
    trials: int  # that were measured
    share: float  # throughput of the best finalist, as a share of the best configuration's
    shares: tuple[float, ...]  # the same of the best known after each of `LOOKS` trials
    stopped: str
    prediction_error: float  # median relative distance of predictions from what was then measured


class Tape:
    """Answers trials from one pass over a recorded grid, with noise."""

    def __init__(self, trace: Trace, fed_by: int, seed: int) -> None:
        self._plan = trace.plan()
        self._rates = dict(zip(trace.configs, trace.passes[fed_by], strict=True))
        self._noise = random.Random(seed)

    def __call__(self, request: TrialRequest) -> TrialResult:
        """Answer one trial."""
        rate = self._rates[request.config] * math.exp(self._noise.gauss(0.0, NOISE))
        if rate <= 0:
            return TrialResult(kind="crashed", config=request.config, message="failed when it was recorded")
        return TrialResult(kind="completed", config=request.config, measurement=_measure(self._plan, request, rate))


def _measure(plan: Plan, request: TrialRequest, rate: float) -> Measurement:
    """Make a measurement from which exactly this throughput is estimated."""
    size = request.config.dataloader.batch_size or 1
    samples = BATCHES_SHOWN * size
    epoch_seconds = max(1e-6, samples / rate - plan.cold_start_seconds(request.config) / request.epochs)
    return make_measurement(BATCHES_SHOWN, size, epoch_seconds, EPOCHS_SHOWN)


def replay(trace: Trace, sampler: SamplerName, seed: int, warm: WarmStart | None = None) -> Replayed:
    """Run the search over a trace, perhaps from an earlier result; odd seeds are fed by its second pass."""
    plan = trace.plan()
    plan = replace(plan, request=plan.request.model_copy(update={"sampler": sampler, "seed": seed}))
    study = optuna.create_study(sampler=make_sampler(plan.request, plan.space), direction="maximize")
    fed_by = seed % 2
    tape, search = Tape(trace, fed_by, seed), Search(study, plan.space)
    loop = SearchLoop(plan, search, tape, ProgressListener(), warm=warm)
    stopped = loop.run()
    truth = {config: math.sqrt(one * two) for config, one, two in zip(trace.configs, *trace.passes, strict=True)}
    best = _find_best(trace)
    known = loop.knowledge
    measured = [record for record in known.records if record.is_feasible]
    finalists = select_finalists(
        known.records,
        plan.defaults,
        truth.__contains__,
        known.smoothed_throughput(),
        known.surrogate.predict_speedups,
    )
    return Replayed(
        trace=trace.name,
        sampler=sampler,
        seed=seed,
        trials=len(measured),
        share=max(truth[config] for config in finalists) / best,
        shares=tuple(_judge_early(measured[:look], truth) / best for look in LOOKS),
        stopped=stopped,
        prediction_error=statistics.median(abs(record.predicted / record.score - 1) for record in measured),
    )


def _find_best(trace: Trace) -> float:
    """What the fastest configuration of each pass reached in the other, mean of the two."""
    first, second = trace.passes
    return (second[first.index(max(first))] + first[second.index(max(second))]) / 2


def _judge_early(records: Sequence[TrialRecord], truth: dict[LoaderConfig, float]) -> float:
    return truth[max(records, key=lambda record: record.score).config]


def print_table(runs: Sequence[Replayed]) -> None:
    """Print a line for each trace and sampler, and one for each sampler over all."""
    print(f"{'trace':12} {'sampler':8} {'choice, mean [95 %]':>24} {'worst':>6} {'trials':>7}  after " + _name_looks())
    names = [*dict.fromkeys(run.trace for run in runs), "all"]
    for name in names:
        for sampler in dict.fromkeys(run.sampler for run in runs):
            chosen = [run for run in runs if run.sampler == sampler and name in (run.trace, "all")]
            print(_describe(name, sampler, chosen))


def _name_looks() -> str:
    return "  ".join(f"{look:>4}" for look in LOOKS) + " trials"


def _describe(name: str, sampler: str, runs: Sequence[Replayed]) -> str:
    shares = [run.share for run in runs]
    mean = statistics.fmean(shares)
    half = student_t(len(shares) - 1) * statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
    choice = f"{mean:.1%} [{mean - half:.1%}-{mean + half:.1%}]"
    early = "  ".join(f"{statistics.fmean(run.shares[at] for run in runs):4.0%}" for at in range(len(LOOKS)))
    trials = statistics.fmean(run.trials for run in runs)
    return f"{name:12} {sampler:8} {choice:>24} {min(shares):6.1%} {trials:7.1f}        {early}"


def read_traces(folder: Path = TRACES) -> list[Trace]:
    """Read all recorded grids."""
    return [Trace.model_validate_json(path.read_text()) for path in sorted(folder.glob("*.json"))]


def main() -> None:
    """Replay all traces with all samplers, print the table and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS, choices=(*SAMPLERS, "gp"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
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
