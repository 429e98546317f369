"""How often do the intervals that dltune states hold the truth, when it picks the best and adds rounds as it sees fit?

Simulated: a baseline and finalists whose true throughputs are known, and processes that differ by a level of their own.
The confirmation and the decision are the real ones.

    python -m benchmarks.coverage
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, replace
from typing import Final

from autotune.config import LoaderConfig
from autotune.progress import ProgressListener
from autotune.search.plan import Plan
from autotune.settings import config_from_values
from autotune.trial.budgets import Budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.validation.decision import Decision, decide
from autotune.validation.rounds import confirm
from benchmarks.traces import TRACES, Trace, make_measurement

RUNS: Final = 2000
SPREADS: Final = (0.01, 0.02, 0.03, 0.05, 0.09)  # relative spread of processes, as seen of whole runs on real machines
EPOCH_BATCHES: Final = 8
BATCH_SIZE: Final = 32
TRUTHS: Final = {
    "equal finalists": (1.0, 1.5, 1.5, 1.5),
    "close finalists": (1.0, 1.46, 1.48, 1.5),
    "a small gain": (1.0, 1.03, 1.04, 1.05),
    "one clear winner": (1.0, 1.2, 1.4, 3.0),
}  # throughput of the baseline and of each finalist, relative to the baseline's


@dataclass(frozen=True, slots=True)
class Covered:
    """What one simulated run stated, against the truth."""

    rate: bool  # whether the interval of the throughput holds it
    speedup: bool | None  # whether that of the speed-up does; None where the baseline was kept
    rate_error: float  # stated over true throughput, less 1


def simulate(plan: Plan, truths: tuple[float, ...], spread: float, seed: int) -> Covered:
    """Confirm and decide once where the truth is known.

    Args:
        plan: Names the baseline.
        truths: True throughput of the baseline and of each finalist, relative to the baseline's.
        spread: Relative standard deviation of a process's level.
        seed: Of the levels.

    Returns:
        What was stated, against the truth.
    """
    dice = random.Random(seed)
    configs = (plan.baseline, *(_name_finalist(plan, number) for number in range(1, len(truths))))
    rates = {config: 1000.0 * truth for config, truth in zip(configs, truths, strict=True)}

    def run_trial(request: TrialRequest) -> TrialResult:
        rate = rates[request.config] * dice.lognormvariate(0.0, spread)
        return TrialResult(
            kind="completed",
            config=request.config,
            measurement=make_measurement(EPOCH_BATCHES, BATCH_SIZE, BATCH_SIZE * EPOCH_BATCHES / rate, 1),
        )

    decision = decide(confirm(plan, configs[1:], run_trial, ProgressListener()), plan.defaults, plan.budgets)
    assert decision is not None
    return _judge(decision, rates[decision.config], rates[plan.baseline])


def _name_finalist(plan: Plan, number: int) -> LoaderConfig:
    values = {**plan.defaults.values, "batch_size": plan.baseline.dataloader.batch_size, "num_workers": number}
    return config_from_values(values)


def _judge(decision: Decision, true: float, true_baseline: float) -> Covered:
    assert decision.ci95 is not None
    low, high = decision.ci95
    speedup = None
    if decision.verdict == "faster" and decision.speedup_ci95 is not None:
        speedup = decision.speedup_ci95[0] <= true / true_baseline <= decision.speedup_ci95[1]
    return Covered(low <= true <= high, speedup, decision.samples_per_second / true - 1)


def simulate_many(plan: Plan, truths: tuple[float, ...], spread: float, runs: int) -> list[Covered]:
    """Simulate so many runs with seeds of their own."""
    return [simulate(plan, truths, spread, seed) for seed in range(runs)]


def make_plan() -> Plan:
    """Make a plan with ample limits; which workload it is for does not matter here."""
    plan = Trace.model_validate_json((TRACES / "tutorial.json").read_text()).plan()
    ample = Budgets(memory_bytes=1 << 40, reserve_bytes=0, shm_bytes=1 << 40, nofile=1 << 20, max_workers=64)
    return replace(plan, budgets=ample)


def main() -> None:
    """Print how often the intervals hold, for each kind of truth and each spread."""
    plan = make_plan()
    runs = RUNS // len(SPREADS)
    print(f"{'truth':18} {'spread':>7} {'rate holds':>11} {'speed-up holds':>15} {'mean error':>11}")
    everything: list[Covered] = []
    for name, truths in TRUTHS.items():
        for spread in SPREADS:
            found = simulate_many(plan, truths, spread, runs)
            everything += found
            print(f"{name:18} {spread:>7.0%} {_describe(found)}")
    print(f"{'all':18} {'':>7} {_describe(everything)}   {len(everything):,} runs")


def _describe(found: list[Covered]) -> str:
    rate = statistics.fmean(one.rate for one in found)
    speedups = [one.speedup for one in found if one.speedup is not None]
    speedup = f"{statistics.fmean(speedups):.1%}" if speedups else "kept"
    error = statistics.fmean(one.rate_error for one in found)
    return f"{rate:>11.1%} {speedup:>15} {error:>+11.1%}"


if __name__ == "__main__":
    main()
