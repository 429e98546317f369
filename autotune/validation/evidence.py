"""What the answer rests on: every trial, what the model makes of them, and where a batch's time goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.config import MAX_RATE, LoaderConfig
from autotune.profiles.search_record import BatchTimeBreakdown, ScalingPoint, SearchEvidence, TrialSummary
from autotune.search.cost_model import predict_copy
from autotune.search.demand import BudgetViolation, describe_violations
from autotune.search.plan import Plan
from autotune.search.surrogate import Prediction
from autotune.search.trial_record import TrialRecord
from autotune.settings import SETTINGS, config_from_values, setting_values
from autotune.trial.budgets import Budgets
from autotune.trial.resources import RESOURCES

Predict = Callable[[Sequence[LoaderConfig]], list[Prediction]]
"""What the model, as corrected by the trials, expects of some configurations."""


def build_evidence(
    plan: Plan, records: Sequence[TrialRecord], answer: LoaderConfig, predict: Predict
) -> SearchEvidence:
    """Gather what the report shows beside the answer."""
    return SearchEvidence(
        trials=tuple(summarize_trial(number, record, plan) for number, record in enumerate(records, start=1)),
        scaling_curve=worker_scaling_curve(plan, answer, predict),
        batch_time=batch_time_breakdown(plan, answer),
        knob_importance=knob_importance(plan, answer, predict),
    )


def summarize_trial(number: int, record: TrialRecord, plan: Plan) -> TrialSummary:
    """Write down what became of the proposal with this number, from 1, and why it was skipped or failed."""
    facts: dict[str, Any] = {"number": number, "expected_samples_per_second": min(record.predicted, MAX_RATE)}
    facts["config"] = record.config
    result = record.result
    if result is None:
        return TrialSummary(outcome="skipped", reason=skip_reason(record, plan.budgets), **facts)
    facts |= {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
    if result.measurement is None:
        return TrialSummary(outcome="failed", reason=f"It {result.message.rstrip('.')}.", **facts)
    found = plan.estimate(result)
    error = found.relative_error if found is not None and math.isfinite(found.relative_error) else None
    outcome = "stopped_early" if result.measurement.stopped == "hopeless" else "completed"
    return TrialSummary(outcome=outcome, samples_per_second=record.score, relative_error=error, **facts)


def skip_reason(record: TrialRecord, budgets: Budgets) -> str:
    """Say why a configuration was not tried, from the shares by which it was predicted to pass its limits."""
    over = {resource: record.constraints.get(resource.name, 0.0) for resource in RESOURCES}
    allowed = {resource: getattr(budgets, resource.budget) or 0 for resource in RESOURCES}
    broken = [
        BudgetViolation(resource, needed=allowed[resource] * (1 + share), limit=allowed[resource])
        for resource, share in over.items()
        if share > 0
    ]
    return (
        f"Predicted over a limit: {describe_violations(broken)}."
        if broken
        else "Ruled out by what earlier trials showed."
    )


def worker_scaling_curve(plan: Plan, answer: LoaderConfig, predict: Predict) -> tuple[ScalingPoint, ...]:
    """Trace the expected throughput along the number of workers, as far as no limit is predicted to be broken."""
    demand = plan.resource_model()
    configs = [
        config
        for config in sweep_knob(plan, answer, "num_workers")
        if config == answer or not demand.predict(config).find_violations(plan.budgets)
    ]
    return tuple(
        ScalingPoint(
            num_workers=config.dataloader.num_workers,
            samples_per_second=min(expected.samples_per_second, MAX_RATE),
            relative_error=min(expected.relative_error, MAX_RATE),
        )
        for config, expected in zip(configs, predict(configs), strict=True)
    )


def knob_importance(plan: Plan, answer: LoaderConfig, predict: Predict) -> dict[str, float]:
    """Weigh the searched knobs by how much the expected throughput varies along each, all else as in the answer.

    Returns:
        For each knob the spread of the logarithm, as a share of the sum over all; empty when nothing varies.
    """
    spreads = {}
    for knob in plan.space.searched():
        logs = [math.log(expected.samples_per_second) for expected in predict(list(sweep_knob(plan, answer, knob)))]
        spreads[knob] = max(logs) - min(logs)
    whole = sum(spreads.values())
    return {knob: spread / whole for knob, spread in spreads.items()} if whole > 0 else {}


def sweep_knob(plan: Plan, answer: LoaderConfig, knob: str) -> Iterator[LoaderConfig]:
    """Walk up along one knob, all else as in the answer, which is passed on the way.

    An answer without workers says nothing of the knobs that need them: those are set as is conventional.
    """
    values = setting_values(answer)
    choices: tuple[Any, ...] = plan.space.choices[knob]
    if not answer.dataloader.num_workers:
        dependent = {knob.name: knob.recommended for knob in SETTINGS.values() if knob.needs == "num_workers"}
        usual = setting_values(
            plan.space.from_params({**dependent, "num_workers": max(plan.space.choices["num_workers"])})
        )
        values |= {name: usual[name] for name in dependent}
    for choice in choices if values[knob] in choices else sorted({*choices, values[knob]}):
        yield config_from_values({**values, knob: choice}, answer.process.multiprocessing_context)


def batch_time_breakdown(plan: Plan, answer: LoaderConfig) -> BatchTimeBreakdown:
    """Split the work in one batch of the answer's size into its parts, as the probe measured them."""
    workload = plan.workload
    size = answer.dataloader.batch_size or workload.probe_batch_size
    collate = workload.collate_cost.per_batch(size)
    return BatchTimeBreakdown(
        samples=size,
        load=max(0.0, workload.load_cost.per_batch(size) - collate),
        collate=collate,
        transfer=workload.transfer_cost.per_batch(size),
        copy_seconds=predict_copy(answer, workload),
        step=workload.step_cost.per_batch(size),
    )
