"""What the answer rests on: every trial, what the model makes of them, and where a batch's time goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.search.cost_model import predict_copy
from autotune.trial.budgets import Limits, Violation
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord
from autotune.report.text import describe_skip
from autotune.request import Knob
from autotune.profiles.schema import MOST_RATE, BatchTime, CurvePoint, Evidence, LoaderConfig, TrialLine
from autotune.search.space import CONVENTION, list_values, make_config
from autotune.search.surrogate import Prediction

Predict = Callable[[Sequence[LoaderConfig]], list[Prediction]]
"""What the model, as corrected by the trials, expects of some configurations."""


def gather_evidence(plan: Plan, records: Sequence[TrialRecord], answer: LoaderConfig, predict: Predict) -> Evidence:
    """Gather what the report shows beside the answer.

    Args:
        plan: What the run had to work with.
        records: Every trial.
        answer: The configuration that was chosen.
        predict: The model as corrected by the trials.

    Returns:
        The evidence.
    """
    return Evidence(
        trials=tuple(make_trial_line(number, record, plan) for number, record in enumerate(records, start=1)),
        curve=trace_curve(plan, answer, predict),
        batch_time=split_batch_time(plan, answer),
        importance=weigh_knobs(plan, answer, predict),
    )


def make_trial_line(number: int, record: TrialRecord, plan: Plan) -> TrialLine:
    """Write down what became of one proposal.

    Args:
        number: Its place in the search, from 1.
        record: Its record.
        plan: What the run had to work with.

    Returns:
        The line, with the reason when it was skipped or failed.
    """
    facts: dict[str, Any] = {"number": number, "expected": min(record.predicted, MOST_RATE)}
    facts |= {"dataloader": record.config.dataloader, "process": record.config.process}
    result = record.result
    if result is None:
        return TrialLine(fate="skipped", reason=explain_skip(record, plan.limits), **facts)
    facts |= {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
    if result.measurement is None:
        return TrialLine(fate="failed", reason=f"It {result.message.rstrip('.')}.", **facts)
    found = plan.estimate(result)
    error = found.relative_error if found is not None and math.isfinite(found.relative_error) else None
    fate = "stopped_early" if result.measurement.stopped == "hopeless" else "completed"
    return TrialLine(fate=fate, samples_per_second=record.score, relative_error=error, **facts)


def explain_skip(record: TrialRecord, limits: Limits) -> str:
    """Say why a configuration was not tried, from the shares by which it was predicted to pass its limits."""
    budgets = {
        "memory": ("host memory", limits.memory_bytes),
        "shm": ("/dev/shm", limits.shm_bytes),
        "files": ("open files", limits.nofile),
        "gpu": ("device memory", limits.gpu_bytes or 0),
    }
    broken = [
        Violation(resource=name, needed=limit * (1 + record.constraints[key]), limit=limit)
        for key, (name, limit) in budgets.items()
        if record.constraints.get(key, 0.0) > 0
    ]
    return f"Predicted over a limit: {describe_skip(broken)}." if broken else "Ruled out by what earlier trials showed."


def trace_curve(plan: Plan, answer: LoaderConfig, predict: Predict) -> tuple[CurvePoint, ...]:
    """Trace the expected throughput along the number of workers, as far as no limit is predicted to be broken.

    Args:
        plan: What the run had to work with.
        answer: The configuration that was chosen; all else stays as in it.
        predict: The model as corrected by the trials.

    Returns:
        Points, ascending in the number of workers.
    """
    demand = plan.demand_model()
    configs = [
        config
        for config in vary(plan, answer, "num_workers")
        if config == answer or not demand.predict(config).find_violations(plan.limits)
    ]
    return tuple(
        CurvePoint(
            num_workers=config.dataloader.num_workers,
            samples_per_second=min(expected.samples_per_second, MOST_RATE),
            relative_error=min(expected.relative_error, MOST_RATE),
        )
        for config, expected in zip(configs, predict(configs), strict=True)
    )


def weigh_knobs(plan: Plan, answer: LoaderConfig, predict: Predict) -> dict[str, float]:
    """Weigh the searched knobs by how much the expected throughput varies along each.

    Args:
        plan: What the run had to work with.
        answer: The configuration that was chosen; all else stays as in it.
        predict: The model as corrected by the trials.

    Returns:
        For each knob the spread of the logarithm, as a share of the sum over all; empty when nothing varies.
    """
    spreads = {}
    for knob in plan.space.searched():
        logs = [math.log(expected.samples_per_second) for expected in predict(list(vary(plan, answer, knob)))]
        spreads[knob] = max(logs) - min(logs)
    whole = sum(spreads.values())
    return {knob: spread / whole for knob, spread in spreads.items()} if whole > 0 else {}


def vary(plan: Plan, answer: LoaderConfig, knob: Knob) -> Iterator[LoaderConfig]:
    """Walk along one knob, all else as in the answer.

    An answer without workers says nothing of the knobs that need them: those are set as a careful hand would.

    Args:
        plan: Holds the choices.
        answer: The configuration that was chosen.
        knob: The knob.

    Yields:
        Configurations, ascending along the knob; the answer is among them.
    """
    values = list_values(answer)
    choices: tuple[Any, ...] = plan.space.choices()[knob]
    if not answer.dataloader.num_workers:
        usual = list_values(plan.space.build({**CONVENTION, "num_workers": max(plan.space.num_workers)}))
        values |= {other: usual[other] for other in usual if other in CONVENTION}
    for choice in sorted({*choices, values[knob]}):
        yield make_config({**values, knob: choice}, answer.process.multiprocessing_context)


def split_batch_time(plan: Plan, answer: LoaderConfig) -> BatchTime:
    """Split the work in one batch of the answer's size into its parts, as the probe measured them."""
    workload = plan.workload
    size = answer.dataloader.batch_size or workload.probe_batch_size
    collate = workload.collate.per_batch(size)
    return BatchTime(
        samples=size,
        load=max(0.0, workload.load.per_batch(size) - collate),
        collate=collate,
        transfer=workload.transfer.per_batch(size),
        copy_seconds=predict_copy(answer, workload),
        step=workload.step.per_batch(size),
    )
