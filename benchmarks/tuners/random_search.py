"""What would random search have chosen in the same time?"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from autotune.search.demand import ResourceModel

from autotune.config import LoaderConfig
from autotune.runner.runner import TrialRunner
from autotune.search.loop import HOPELESS_SHARE, SEARCH_PRECISION, SEARCH_SHARE
from autotune.search.plan import Plan, make_plan
from autotune.search.trial_record import TrialRecord
from autotune.system.machine import read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.throughput import estimate
from benchmarks.records import TunerTrial, Tuning
from benchmarks.tuners.dltune import make_trial
from benchmarks.tuners.trial import make_request
from benchmarks.workloads.workload import BenchWorkload


def search_at_random(workload: BenchWorkload, seconds: float, seed: int = 0) -> Tuning:
    """Try configurations in random order, by the same trials over the same space, until the time is up.

    `--sampler random` would not do: it starts from the cost model's guesses, as every run of dltune does. The answer
    is the best of what was tried; nothing is measured twice.
    """
    started = time.monotonic()
    request = make_request(workload, seed)
    with TrialRunner(request.workload, request.stall_seconds) as runner:
        machine = read_machine()
        budgets = plan_budgets(machine, request)
        profile = runner.probe((workload.batch_size, workload.batch_size), budgets)
        plan = make_plan(request, machine, profile, budgets)
        lines = _try_in_turn(plan, _shuffle_configs(plan, seed), runner.run, started, seconds)
    best = max((line for line in lines if line.completed), key=lambda line: line.score)
    return Tuning(
        tuner="random",
        config=best.config,
        seconds=time.monotonic() - started,
        promise=best.score,
        lines=tuple(lines),
        note=f"{len(lines)} trials",
    )


def _shuffle_configs(plan: Plan, seed: int) -> list[LoaderConfig]:
    """List the configurations that fit the budgets, in random order."""
    model = ResourceModel.from_workload(plan.workload)
    fitting = [config for config in plan.space.configs() if not model.predict(config).find_violations(plan.budgets)]
    random.Random(seed).shuffle(fitting)
    return fitting


def _try_in_turn(
    plan: Plan, configs: Sequence[LoaderConfig], run_trial: RunTrial, started: float, seconds: float
) -> list[TunerTrial]:
    """Run trials while there is time for one more like the last."""
    lines: list[TunerTrial] = []
    for config in configs:
        last = lines[-1].trial_seconds if lines else 0.0
        if time.monotonic() - started + last > seconds and lines:
            break
        best = max((line.score for line in lines), default=0.0)
        record = _try(plan, config, run_trial, best, len(lines))
        lines.append(make_trial(record, time.monotonic() - started))
    return lines


def _try(plan: Plan, config: LoaderConfig, run_trial: RunTrial, best: float, number: int) -> TrialRecord:
    """Run a trial as the search does, which ends a hopeless one early."""
    request = TrialRequest(
        config=config,
        epochs=plan.request.epochs,
        seconds=SEARCH_SHARE * plan.request.trial_seconds,
        precision=SEARCH_PRECISION,
        hopeless_below=HOPELESS_SHARE * best or None,
    )
    result = run_trial(request)
    score = 0.0
    if result.measurement is not None:
        cold = plan.cold_start_seconds(config)
        score = estimate(result.measurement, config, plan.request.epochs, cold).samples_per_second
    return TrialRecord(number=number, config=config, status="measured", score=score, constraints={}, result=result)
