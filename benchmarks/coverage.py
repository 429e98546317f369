"""Measures by simulation how often the 95% intervals of a validation cover the true value, and 'faster' is wrong.

The true throughputs of a baseline and its candidates are known, and the level of each process differs. Validation and
decision are the real ones, so the best is selected by the same runs, and runs are added while a result is uncertain.

    python -m benchmarks.coverage
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import Budgets
from autotune.progress import ProgressListener
from autotune.protocol.measurement import EpochTrace, Measurement, TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search.plan import Plan, make_plan
from autotune.settings import config_from_values
from autotune.system.machine import MachineProfile, Software
from autotune.validation.decision import decide
from autotune.validation.runs import validate

RUNS: Final = 2000
SPREADS: Final = (
    0.01,
    0.03,
    0.05,
    0.064,
    0.09,
)  # relative spread of processes; of whole runs on real machines 1% to 9%
EPOCH_BATCHES: Final = 8
BATCH_SIZE: Final = 32
TRUTHS: Final = {
    "nothing faster, 1": (1.0, 1.0),
    "nothing faster, 2": (1.0, 1.0, 1.0),
    "nothing faster, 3": (1.0, 1.0, 1.0, 1.0),
    "equal candidates": (1.0, 1.5, 1.5, 1.5),
    "close candidates": (1.0, 1.46, 1.48, 1.5),
    "a small gain": (1.0, 1.03, 1.04, 1.05),
    "one clear winner": (1.0, 1.2, 1.4, 3.0),
}  # throughput of the baseline and of each candidate, relative to the baseline's


@dataclass(frozen=True, slots=True)
class Covered:
    """The result of one simulated validation, compared with the true values."""

    rate: bool  # whether the interval of the throughput covers it
    speedup: bool | None  # whether that of the speedup does; None if the baseline is recommended
    rate_error: float  # reported over true throughput, minus 1
    is_faster: bool  # whether another configuration than the baseline is recommended
    runs: int  # of each configuration that was not dropped


def simulate(plan: Plan, truths: tuple[float, ...], spread: float, seed: int) -> Covered:
    """Validate and decide once with known true values.

    Args:
        plan: Has the baseline.
        truths: True throughput of the baseline and of each candidate, relative to the baseline's.
        spread: Relative standard deviation of the level of a process.
        seed: Seed of the levels.

    Returns:
        Whether the intervals cover the true values.
    """
    dice = random.Random(seed)
    configs = (plan.baseline, *(_name_candidate(plan, number) for number in range(1, len(truths))))
    rates = {config: 1000.0 * truth for config, truth in zip(configs, truths, strict=True)}

    def run_trial(request: TrialRequest) -> TrialResult:
        rate = rates[request.config] * dice.lognormvariate(0.0, spread)
        return TrialResult(status="completed", config=request.config, measurement=_measure(rate))

    validation = validate(plan, lambda failed: configs[1:], run_trial, ProgressListener())
    decision = decide(validation, plan)
    assert decision is not None
    low, high = decision.samples_per_second_ci95 or (0.0, 0.0)
    true, true_baseline, speedup = rates[decision.config], rates[plan.baseline], None
    if decision.speedup_ci95 is not None and true != true_baseline:
        speedup = decision.speedup_ci95[0] <= true / true_baseline <= decision.speedup_ci95[1]
    error, is_faster = decision.samples_per_second / true - 1, decision.config != plan.baseline
    return Covered(low <= true <= high, speedup, error, is_faster, validation.runs)


def _name_candidate(plan: Plan, number: int) -> LoaderConfig:
    values = {**plan.default_values, "batch_size": plan.baseline.dataloader.batch_size, "num_workers": number}
    return config_from_values(values)


def simulate_many(plan: Plan, truths: tuple[float, ...], spread: float, runs: int) -> list[Covered]:
    """Simulate this many validations with different seeds."""
    return [simulate(plan, truths, spread, seed) for seed in range(runs)]


def _measure(rate: float) -> Measurement:
    """Build the measurement of an epoch at a constant rate, in samples per second."""
    times = tuple((number + 1) * BATCH_SIZE / rate for number in range(EPOCH_BATCHES))
    samples = BATCH_SIZE * EPOCH_BATCHES
    trace = EpochTrace(
        batch_seconds=times,
        end_seconds=times[-1],
        wait_seconds=0.0,
        samples=samples,
        closed_after=None,
    )
    return Measurement(epochs=(trace,), epoch_batches=EPOCH_BATCHES, stopped="done")


def plan_simulation() -> Plan:
    """Plan a run with ample limits; its machine and its workload do not matter."""
    ample = 1 << 40
    machine = MachineProfile(
        cpu=None,
        affinity_cpus=8,
        quota_cpus=None,
        memory_limit_bytes=ample,
        memory_available_bytes=ample,
        shm_limit_bytes=ample,
        shm_free_bytes=ample,
        shm_writable=True,
        nofile_limit=1 << 20,
    )
    workload = WorkloadProfile(
        description="simulated",
        kind="map",
        samples=BATCH_SIZE * EPOCH_BATCHES,
        batching="batch_size",
        probe_batch_size=BATCH_SIZE,
        load_cost=LinearCost(per_item=1e-3),
        cpu_share=1.0,
        step_cost=LinearCost(fixed=1e-3),
        sample_bytes=1000,
        batch_tensors=1,
        software=Software(dltune="", torch="", cuda=None, python="", start_method="fork"),
    )
    request = TuningRequest(workload=WorkloadRequest(dataset="simulated"), fixed={"batch_size": BATCH_SIZE})
    budgets = Budgets(memory_bytes=ample, reserve_bytes=0, shm_bytes=ample, nofile=1 << 20)
    return make_plan(request, machine, workload, budgets)


def main() -> None:
    """Print the coverage for each set of true values and each spread."""
    plan = plan_simulation()
    print(f"{'true values':18} {'spread':>7} {'rate':>11} {'speedup':>15} {'mean error':>11} {'faster':>8} {'runs':>5}")
    results: list[Covered] = []
    for name, truths in TRUTHS.items():
        for spread in SPREADS:
            found = simulate_many(plan, truths, spread, RUNS)
            results += found
            print(f"{name:18} {spread:>7.1%} {_describe(found)}")
    print(f"{'all':18} {'':>7} {_describe(results)}   {len(results):,} validations")


def _describe(found: list[Covered]) -> str:
    rate = statistics.fmean(one.rate for one in found)
    speedups = [one.speedup for one in found if one.speedup is not None]
    speedup = f"{statistics.fmean(speedups):.1%}" if speedups else "no change"
    error = statistics.fmean(one.rate_error for one in found)
    faster, runs = (statistics.fmean(getattr(one, name) for one in found) for name in ("is_faster", "runs"))
    return f"{rate:>11.1%} {speedup:>15} {error:>+11.1%} {faster:>8.1%} {runs:>5.1f}"


if __name__ == "__main__":
    main()
