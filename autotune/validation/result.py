"""Turns trials and validation into a result, and the result into a profile of dltune.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune.config import MAX_RATE, LoaderConfig
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.profiles import schema
from autotune.search.cost_model import find_bottleneck, predict_copy
from autotune.search.loop import SearchOutcome
from autotune.search.plan import GUESS_ERROR, Plan
from autotune.search.resources import BudgetViolation, describe_violations
from autotune.search.trial_record import TrialRecord, find_best, measure_prediction_error
from autotune.settings import SETTINGS, config_from_values, describe_config, setting_values
from autotune.trial.resources import RESOURCES
from autotune.trial.statistics import NORMAL_QUANTILE
from autotune.units import format_bytes
from autotune.validation.advice import describe_waits, suggest_improvements
from autotune.validation.decision import Decision, decide
from autotune.validation.runs import MIN_RUNS, CandidateRuns, Validation

PREDICTED: Final = "This is a prediction from the profile of the workload; nothing was measured. Tune with --trials 40."
REPEATED_DATA_RATIO: Final = 1.5  # samples that all ranks together deliver in an epoch, over those of the dataset


@dataclass(frozen=True, slots=True)
class Result:
    """The recommendation of a run, the validation behind it, and warnings about it."""

    decision: Decision
    validation: Validation
    warnings: tuple[str, ...] = ()


def decide_result(plan: Plan, found: SearchOutcome, validation: Validation) -> Result:
    """Decide by the validation, or take the best trial of the search if nothing was validated.

    Raises:
        UsageError: --timeout left no time for a trial.
        NoFeasibleConfigError: No configuration works within the limits.
        BaseException: The interruption, if it came before the first measurement.
    """
    interruption = found.interrupted_by or validation.interrupted_by
    decision, warnings = decide(validation, plan.defaults, plan.budgets), list[str]()
    if decision is None:
        decision = _take_best_trial(plan, found.records)
        if decision is None:
            raise interruption or _explain_failures(found.records, validation)
        if validation.failed and validation.runs:
            failure = validation.failed[0].failures[0]
            warnings.append(
                "This is the best trial of the search, not validated: no configuration ran to its end in a fresh "
                f"process ({describe_config(failure.config)}: it {failure.message.rstrip('.')}). Fix that first: each "
                "start may need a port, a lock or a download."
            )
        validation = replace(validation, baseline=CandidateRuns(plan.baseline), candidates=(), runs=0)
    if interruption is None and not warnings and validation.runs < MIN_RUNS:
        warnings.append(f"--timeout left time for {validation.runs} of {MIN_RUNS} validation runs: results may be off.")
    return Result(decision, validation, tuple(warnings))


def predict_result(plan: Plan) -> Result:
    """Return the configuration with the best prediction; nothing is measured."""
    guess = plan.guess()
    rate, bound = guess.samples_per_second, plan.upper_bound(guess.config.dataloader.batch_size)
    verdict = "no_change" if guess.config == plan.baseline else "faster"
    decision = Decision(guess.config, verdict, rate, guess.ci95, max(0.0, 1 - rate / bound), None, None)
    return Result(decision, Validation(CandidateRuns(plan.baseline)), (PREDICTED,))


def _take_best_trial(plan: Plan, records: Sequence[TrialRecord]) -> Decision | None:
    best = find_best(records)
    estimate = None if best is None or best.result is None else plan.estimate(best.result)
    if best is None or estimate is None:
        return None
    baseline = find_best([record for record in records if record.config == plan.baseline])
    speedup = None if baseline is None else best.samples_per_second / baseline.samples_per_second
    verdict = "no_change" if best.config == plan.baseline else "faster"
    return Decision(best.config, verdict, best.samples_per_second, None, estimate.wait_share, speedup, None)


def _explain_failures(records: Sequence[TrialRecord], validation: Validation) -> Exception:
    if not records:
        return UsageError("No trial was run: profiling took all the time of --timeout. Allow more time.")
    failures = [failure for one in validation.failed for failure in one.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"  {failure.kind}: it {failure.message}" for failure in failures)
    skipped = sum(record.status == "skipped" for record in records)
    first = f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."
    return NoFeasibleConfigError("\n".join([first, *list(examples)[:5]]))


def build_profile(
    plan: Plan,
    found: SearchOutcome,
    result: Result,
    *,
    phase_seconds: Mapping[schema.Phase, float],
    seconds: float,
    is_complete: bool,
) -> schema.TunedProfile:
    """Build the profile that is saved; durations are in seconds."""
    request, config = plan.request, result.decision.config
    search = schema.SearchRecord(
        trials=tuple(_summarize_trial(number, one, plan) for number, one in enumerate(found.records, start=1)),
        sampler=request.sampler,
        seed=request.seed,
        seconds=seconds,
        phase_seconds=dict(phase_seconds),
        stop_reason=found.stop_reason,
        prediction_error=measure_prediction_error(found.records),
        scaling=_scale_workers(plan, found, config),
        batch_time=_split_batch_time(plan, config),
    )
    return schema.TunedProfile(
        label=request.profile,
        hardware=plan.hardware,
        software=plan.workload.software,
        workload=plan.identity,
        config=config,
        result=_build_result(plan, found, result),
        budgets=plan.budgets.record(),
        search=search,
        request=request.record(),
        is_complete=is_complete,
        created_at=datetime.now(UTC).replace(microsecond=0),
    )


def _build_result(plan: Plan, found: SearchOutcome, result: Result) -> schema.ProfileResult:
    decision, validation, copies = result.decision, result.validation, plan.workload.h2d
    config, rate, runs = decision.config, decision.samples_per_second, _collect_runs(plan, found, result)
    cpus = plan.local_machine.usable_cpus
    bottleneck = find_bottleneck(config, plan.workload, cpus, decision.wait_share)
    is_bound_reliable = plan.has_reliable_upper_bound(config, rate)
    return schema.ProfileResult(
        samples_per_second=rate,
        samples_per_second_ci95=decision.ci95,
        validation_runs=validation.runs,
        epochs=plan.request.epochs,
        is_predicted=not plan.request.trials,
        baseline=_describe_baseline(plan, validation.baseline),
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_ci95,
        verdict=decision.verdict,
        upper_bound_samples_per_second=plan.upper_bound(config.dataloader.batch_size) if is_bound_reliable else None,
        wait_share=decision.wait_share,
        batch_waits=runs.batch_waits,
        bottleneck=bottleneck,
        peak_host_bytes=runs.peak_host_bytes,
        peak_shm_bytes=runs.peak_shm_bytes,
        peak_gpu_bytes=runs.peak_gpu_bytes,
        copy_bytes_per_second=rate * plan.workload.sample_bytes if copies else None,
        copy_bound_bytes_per_second=copies.of(pinned=config.dataloader.pin_memory) if copies else None,
        by_batch_size=_compare_batch_sizes(found.records),
        processes=runs.process_waits,
        candidates=tuple(one.record() for one in validation.entrants),
        gains=decision.gains,
        contributions=estimate_contributions(plan, found, result),
        advice=(*describe_waits(runs), *suggest_improvements(plan, config, bottleneck)),
        warnings=(*plan.workload.notes, *found.warnings, *result.warnings, *_list_warnings(plan, validation, runs)),
    )


def _collect_runs(plan: Plan, found: SearchOutcome, result: Result) -> CandidateRuns:
    """Return the validation runs of the recommended configuration; if there are none, its trials in the search."""
    config = result.decision.config
    for one in result.validation.entrants:
        if one.config == config and one.rates:
            return one
    runs = CandidateRuns(config)
    for number, record in enumerate(found.records, start=1):
        if record.config == config and record.result is not None:
            runs.add(number, record.result, plan.request.epochs)
    return runs


def _describe_baseline(plan: Plan, baseline: CandidateRuns) -> schema.Baseline | None:
    if not baseline.rate:
        return None
    return schema.Baseline(
        description="your DataLoader's settings" if plan.workload.baseline else "PyTorch's defaults",
        config=baseline.config,
        samples_per_second=baseline.rate,
        wait_share=baseline.wait_share,
    )


def _list_warnings(plan: Plan, validation: Validation, runs: CandidateRuns) -> Iterator[str]:
    yield from validation.noise
    for one in validation.failed if validation.runs else ():
        tried, failed = len(one.rates) + len(one.failures), len(one.failures)
        yield (
            f"{failed} of {tried} validation runs of {describe_config(one.config)} failed: it {one.failures[0].message}"
        )
    if runs.gpu_growth_bytes:
        yield (
            f"Device memory grew by {format_bytes(runs.gpu_growth_bytes)} in the second half of a run: leave that much "
            "free, or measure longer with --trial-time."
        )
    samples = plan.workload.samples or plan.workload.counted_samples or 0
    delivered = max((sum(rank.samples for rank in one.ranks) for one in runs.measurements), default=0)
    if samples and delivered > REPEATED_DATA_RATIO * samples:
        yield (
            f"All ranks together delivered {delivered:,} samples in an epoch of a dataset of {samples:,}: each goes "
            "through all of it. Pass a DistributedSampler to the loader, or split an iterable dataset by rank."
        )


def _compare_batch_sizes(records: Sequence[TrialRecord]) -> tuple[schema.BatchSizeResult, ...]:
    """Return the best trial of each batch size; nothing for a single size."""
    best = dict[int, schema.BatchSizeResult]()
    for record in sorted((one for one in records if one.is_feasible), key=lambda one: one.samples_per_second):
        if size := record.config.dataloader.batch_size:
            rate = record.samples_per_second
            best[size] = schema.BatchSizeResult(batch_size=size, config=record.config, samples_per_second=rate)
    return tuple(best[size] for size in sorted(best)) if len(best) > 1 else ()


def estimate_contributions(plan: Plan, found: SearchOutcome, result: Result) -> tuple[schema.Contribution, ...]:
    """Estimate the gain of each setting, from the baseline to the validated configuration one setting at a time.

    The model of the search estimates the steps, and they end at the measured throughput. A step from or to a
    configuration that was never tried is as uncertain as a guess. A single step has the measured speedup.
    """
    decision, validation = result.decision, result.validation
    is_validated = validation.runs and validation.interrupted_by is None
    if not is_validated or decision.verdict != "faster" or decision.speedup is None:
        return ()
    values, goal = setting_values(plan.baseline), setting_values(decision.config)
    path, settings = [plan.baseline], list[str]()
    for name in SETTINGS:
        values[name] = goal[name]
        config = config_from_values(values, decision.config.process.multiprocessing_context)
        if config != path[-1]:
            path.append(config)
            settings.append(f"{name}={goal[name]}")
    steps = [(decision.speedup, decision.speedup_ci95)]
    if len(settings) > 1:
        tried = {record.config for record in found.records if record.is_feasible}
        steps = []
        for before, after, gain in zip(path, path[1:], found.predict_speedups(path), strict=False):
            error = gain.log_error if {before, after} <= tried else math.hypot(gain.log_error, GUESS_ERROR)
            factor = math.exp(NORMAL_QUANTILE * error)
            steps.append((gain.ratio, (gain.ratio / factor, gain.ratio * factor)))
    rows, rate = list[schema.Contribution](), decision.samples_per_second
    for setting, (ratio, ci95) in reversed(list(zip(settings, steps, strict=True))):
        step = {"setting": setting, "samples_per_second": rate, "speedup": ratio, "speedup_ci95": ci95}
        rows.insert(0, schema.Contribution(**step, is_estimate=len(settings) > 1))
        rate /= ratio
    return tuple(rows)


def _summarize_trial(number: int, record: TrialRecord, plan: Plan) -> schema.TrialSummary:
    facts: dict[str, Any] = {"predicted_samples_per_second": min(record.predicted, MAX_RATE)}
    facts |= {"number": number, "config": record.config}
    result = record.result
    if result is None:
        return schema.TrialSummary(outcome="skipped", reason=_explain_skip(record, plan), **facts)
    facts |= {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
    estimate = plan.estimate(result)
    if estimate is None or result.measurement is None:
        return schema.TrialSummary(outcome="failed", reason=f"It {result.message.rstrip('.')}.", **facts)
    error = estimate.relative_error if math.isfinite(estimate.relative_error) else None
    outcome = "stopped_early" if result.measurement.stopped == "hopeless" else "completed"
    rate = record.samples_per_second
    return schema.TrialSummary(outcome=outcome, samples_per_second=rate, relative_error=error, **facts)


def _explain_skip(record: TrialRecord, plan: Plan) -> str:
    """Name the limits that a configuration was predicted to exceed; its constraints are shares over each limit."""
    exceeded = []
    for resource in RESOURCES:
        limit, share = getattr(plan.budgets, resource.budget) or 0, record.constraints.get(resource.name, 0.0)
        if share > 0:
            exceeded.append(BudgetViolation(resource, needed=limit * (1 + share), limit=limit))
    return f"Predicted over a limit: {describe_violations(exceeded)}." if exceeded else "Ruled out by earlier trials."


def _scale_workers(plan: Plan, found: SearchOutcome, config: LoaderConfig) -> tuple[schema.ScalingPoint, ...]:
    """Trace the expected throughput over the number of workers, within the limits.

    Other settings are as recommended; if no workers are, those of configurations with workers have default values.
    """
    model, swept = plan.resource_model(), []
    for workers in sorted({*plan.space.choices["num_workers"], config.dataloader.num_workers}):
        values = setting_values(config) | {"num_workers": workers}
        changed = config_from_values(values, config.process.multiprocessing_context)
        if workers and not config.dataloader.num_workers:
            changed = plan.defaults.default_variant(changed)
        if changed == config or not model.predict(changed).find_violations(plan.budgets):
            swept.append(changed)
    points = []
    for changed, expected in zip(swept, found.predict(swept), strict=True):
        rate, error = min(expected.samples_per_second, MAX_RATE), min(expected.relative_error, MAX_RATE)
        workers = changed.dataloader.num_workers
        points.append(schema.ScalingPoint(num_workers=workers, samples_per_second=rate, relative_error=error))
    return tuple(points)


def _split_batch_time(plan: Plan, config: LoaderConfig) -> schema.BatchTime:
    workload = plan.workload
    size = config.dataloader.batch_size or workload.probe_batch_size
    collate = workload.collate_cost.per_batch(size)
    return schema.BatchTime(
        samples=size,
        load_seconds=max(0.0, workload.load_cost.per_batch(size) - collate),
        collate_seconds=collate,
        transfer_seconds=workload.transfer_cost.per_batch(size),
        copy_seconds=predict_copy(config, workload),
        step_seconds=workload.step_cost.per_batch(size),
    )
