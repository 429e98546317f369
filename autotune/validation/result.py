"""Turns trials and validation into a result, and the result into a profile of dltune.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from autotune.config import MAX_RATE, LoaderConfig
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.planning.cost_model import find_bottleneck
from autotune.planning.plan import GUESS_ERROR, Plan
from autotune.profiles import schema
from autotune.protocol.statistics import NORMAL_QUANTILE
from autotune.search.study import TrialRecord, find_best
from autotune.settings import SETTINGS, config_from_values, describe_config, setting_values
from autotune.units import format_bytes
from autotune.validation.advice import describe_waits, suggest_improvements
from autotune.validation.decision import Decision, decide
from autotune.validation.runs import MIN_RUNS, CandidateRuns, Validation

if TYPE_CHECKING:  # it imports optuna, which `dltune check` does not need
    from autotune.search.loop import SearchOutcome

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
    interruption, warnings = found.interrupted_by or validation.interrupted_by, list[str]()
    decision = decide(validation, plan.defaults, plan.budgets)
    if decision is None:
        if (best := find_best(found.records)) is None:
            raise interruption or _explain_failures(found.records, validation)
        baseline = find_best([record for record in found.records if record.config == plan.baseline])
        speedup = None if baseline is None else best.samples_per_second / baseline.samples_per_second
        decision = Decision(best.config, best.samples_per_second, None, speedup, None)
        if validation.failed and validation.runs:
            failure = validation.failed[0].failures[0]
            warnings.append(
                "This is the best trial of the search, not validated: no configuration ran to its end in a fresh "
                f"process ({describe_config(failure.config)}: it {failure.message.rstrip('.')}). Fix that first: each "
                "start may need a port, a lock or a download."
            )
        validation = replace(validation, baseline=CandidateRuns(plan.baseline), runs=0)
    if interruption is None and not warnings and validation.runs < MIN_RUNS:
        warnings.append(f"--timeout left time for {validation.runs} of {MIN_RUNS} validation runs: results may be off.")
    return Result(decision, validation, tuple(warnings))


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
    request, workload, config = plan.request, plan.workload, result.decision.config
    search = schema.SearchRecord(
        trials=tuple(_summarize_trial(number, one, plan) for number, one in enumerate(found.records, start=1)),
        sampler=request.sampler,
        seed=request.seed,
        seconds=seconds,
        phase_seconds=dict(phase_seconds),
        stop_reason=found.stop_reason,
        scaling=_scale_workers(plan, found, config),
        batch_samples=config.dataloader.batch_size or workload.probe_batch_size,
    )
    return schema.TunedProfile(
        label=request.profile,
        hardware=plan.hardware,
        software=workload.software,
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
    decision, validation, workload = result.decision, result.validation, plan.workload
    config, rate = decision.config, decision.samples_per_second
    runs = next((one for one in validation.entrants if one.config == config and one.rates), None)
    if runs is None:  # not validated: the search measured it
        runs = CandidateRuns(config)
        for number, record in enumerate(found.records, start=1):
            if record.config == config and record.result is not None:
                runs.add(number, record.result, plan.request.epochs)
    bound, base, copies = plan.upper_bound(config.dataloader.batch_size), validation.baseline, workload.h2d
    wait_share = runs.wait_share if runs.rates else max(0.0, 1 - rate / bound)
    bottleneck = find_bottleneck(config, workload, plan.local_machine.usable_cpus, wait_share)
    baseline = schema.Baseline(
        description="your DataLoader's settings" if workload.baseline else "PyTorch's defaults",
        config=base.config,
        samples_per_second=base.rate,
        wait_share=base.wait_share,
    )
    return schema.ProfileResult(
        samples_per_second=rate,
        samples_per_second_ci95=decision.ci95,
        validation_runs=validation.runs,
        epochs=plan.request.epochs,
        baseline=baseline if base.rate else None,
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_ci95,
        verdict="no_change" if config == plan.baseline else "faster",
        upper_bound_samples_per_second=bound if plan.has_reliable_upper_bound(config, rate) else None,
        wait_share=wait_share,
        batch_waits=runs.batch_waits,
        bottleneck=bottleneck,
        peak_host_bytes=runs.peak_host_bytes,
        peak_shm_bytes=runs.peak_shm_bytes,
        peak_gpu_bytes=runs.peak_gpu_bytes,
        copy_bytes_per_second=rate * workload.sample_bytes if copies else None,
        copy_bound_bytes_per_second=copies.of(pinned=config.dataloader.pin_memory) if copies else None,
        processes=runs.process_waits,
        candidates=tuple(one.record() for one in validation.entrants),
        gains=decision.gains,
        contributions=_estimate_contributions(plan, found, result),
        advice=(*describe_waits(runs), *suggest_improvements(plan, config, bottleneck)),
        warnings=(*workload.notes, *found.warnings, *result.warnings, *_list_warnings(plan, validation, runs)),
    )


def _list_warnings(plan: Plan, validation: Validation, runs: CandidateRuns) -> Iterator[str]:
    yield from validation.noise
    for one in validation.failed if validation.runs else ():
        tried, failed = len(one.rates) + len(one.failures), len(one.failures)
        yield f"{describe_config(one.config)}: {failed} of {tried} validation runs failed: it {one.failures[0].message}"
    if runs.gpu_growth_bytes:
        growth = format_bytes(runs.gpu_growth_bytes)
        yield f"Device memory grew by {growth} in the second half of a run: measure longer with --trial-time."
    samples = plan.workload.samples or plan.workload.counted_samples or 0
    delivered = max((sum(rank.samples for rank in one.ranks) for one in runs.measurements), default=0)
    if samples and delivered > REPEATED_DATA_RATIO * samples:
        yield (
            f"All ranks together delivered {delivered:,} samples in an epoch of a dataset of {samples:,}: each goes "
            "through all of it. Pass a DistributedSampler to the loader, or split an iterable dataset by rank."
        )


def _estimate_contributions(plan: Plan, found: SearchOutcome, result: Result) -> tuple[schema.Contribution, ...]:
    """Estimate the gain of each setting, from the baseline to the validated configuration one setting at a time.

    The model of the search estimates the steps, and they end at the measured throughput. A step from or to a
    configuration that was never tried is as uncertain as a guess. A single step has the measured speedup.
    """
    decision, validation = result.decision, result.validation
    if not validation.runs or validation.interrupted_by or decision.config == plan.baseline or decision.speedup is None:
        return ()
    values, goal = setting_values(plan.baseline), setting_values(decision.config)
    path, settings = [plan.baseline], list[str]()
    for name in SETTINGS:
        values[name] = goal[name]
        config = config_from_values(values, decision.config.process.multiprocessing_context)
        if config != path[-1]:
            path.append(config)
            settings.append(f"{name}={goal[name]}")
    tried = {record.config for record in found.records if record.is_feasible}
    rows, rate = list[schema.Contribution](), decision.samples_per_second
    gains = zip(settings, path, path[1:], found.model.surrogate.predict_speedups(path), strict=False)
    for setting, before, after, gain in reversed(list(gains)):
        error = gain.log_error if {before, after} <= tried else math.hypot(gain.log_error, GUESS_ERROR)
        factor = math.exp(NORMAL_QUANTILE * error)
        speedup, ci95 = gain.ratio, (gain.ratio / factor, gain.ratio * factor)
        if is_single := len(settings) == 1:
            speedup, ci95 = decision.speedup, decision.speedup_ci95 or ci95
        step: dict[str, Any] = {"setting": setting, "samples_per_second": rate, "speedup": speedup}
        rows.insert(0, schema.Contribution(**step, speedup_ci95=ci95, is_estimate=not is_single))
        rate /= speedup
    return tuple(rows)


def _summarize_trial(number: int, record: TrialRecord, plan: Plan) -> schema.TrialSummary:
    facts: dict[str, Any] = {"predicted_samples_per_second": min(record.predicted, MAX_RATE)}
    facts |= {"number": number, "config": record.config}
    result = record.result
    if result is None:
        exceeded = plan.describe_excess(record.config)
        reason = f"Predicted over a limit: {exceeded}." if exceeded else "Ruled out by earlier trials."
        return schema.TrialSummary(outcome="skipped", reason=reason, **facts)
    facts |= {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
    if not record.is_feasible:
        return schema.TrialSummary(outcome="failed", reason=f"It {result.message.rstrip('.')}.", **facts)
    is_stopped = result.measurement is not None and result.measurement.stopped == "pruned"
    facts |= {"outcome": "stopped_early" if is_stopped else "completed", "relative_error": record.relative_error}
    return schema.TrialSummary(samples_per_second=record.samples_per_second, **facts)


def _scale_workers(plan: Plan, found: SearchOutcome, config: LoaderConfig) -> tuple[schema.ScalingPoint, ...]:
    """Trace the expected throughput over the workers, within the limits; without workers from the default values."""
    swept = []
    for workers in sorted({*plan.space.choices["num_workers"], config.dataloader.num_workers}):
        values = setting_values(config) | {"num_workers": workers}
        changed = config_from_values(values, config.process.multiprocessing_context)
        if workers and not config.dataloader.num_workers:
            changed = plan.defaults.default_variant(changed)
        if changed == config or plan.fits(changed):
            swept.append(changed)
    return tuple(
        schema.ScalingPoint(
            num_workers=changed.dataloader.num_workers,
            samples_per_second=min(expected.samples_per_second, MAX_RATE),
        )
        for changed, expected in zip(swept, found.model.surrogate.predict(swept), strict=True)
    )
