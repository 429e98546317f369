"""Turns trials and validation into the profile that dltune.json stores, with advice and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.config import MAX_RATE, LoaderConfig
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.profiles import schema
from autotune.protocol.statistics import NORMAL_QUANTILE
from autotune.protocol.workload_profile import identify
from autotune.search.cost_model import batch_samples, find_bottleneck, has_spinning_step, max_useful_workers
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord, find_best
from autotune.settings import SETTINGS, describe_config, setting_values
from autotune.units import format_bytes, format_seconds
from autotune.validation.candidate_runs import MAX_RUN_ERROR, CandidateRuns
from autotune.validation.decision import Decision, decide
from autotune.validation.runs import MIN_RUNS, Validation

if TYPE_CHECKING:  # it imports optuna, which `dltune check` does not need
    from autotune.search.loop import SearchOutcome

GUESS_ERROR: Final = 0.25  # of the logarithm of a guess, root mean square; 0.05 to 0.33 on the five recorded grids
REPEATED_DATA_RATIO: Final = 1.5  # samples that all ranks together deliver in an epoch, over those of the dataset
IO_CPU_SHARE: Final = 0.5  # CPU share below which a sample mostly waits
COLLATE_SHARE: Final = 0.25  # of loading; below it a faster collate_fn hardly helps
MAX_LINES: Final = 3
WORTHWHILE_GAIN: Final = 1.05  # predicted gain from which a larger limit is worth mentioning


def build_profile(
    plan: Plan,
    found: SearchOutcome,
    validation: Validation,
    *,
    phase_seconds: Mapping[schema.Phase, float],
    seconds: float,
) -> schema.TunedProfile:
    """Decide by the validation, or by the search if nothing was validated, and build the profile that is saved.

    Without a measurement, raise the interruption, UsageError if no trial ran, or NoFeasibleConfigError.
    """
    interruption, warnings = found.interrupted_by or validation.interrupted_by, list[str]()
    precise = {
        one.config: one.samples_per_second
        for one in found.records
        if one.is_feasible and one.relative_error is not None and one.relative_error <= MAX_RUN_ERROR
    }
    decision = decide(validation, plan, precise)
    if decision is None:
        unchanged = [record for record in found.records if not plan.list_training_changes(record.config)]
        if (best := find_best(unchanged) or find_best(found.records)) is None:  # no gain is certain enough for a change
            raise interruption or _explain_failures(found.records, validation)
        baseline = find_best([record for record in found.records if record.config == plan.baseline])
        speedup = None if baseline is None else best.samples_per_second / baseline.samples_per_second
        decision = Decision(best.config, best.samples_per_second, None, speedup, None)
        failures = [failure for one in validation.measured for failure in one.failures]
        if failures and validation.runs:
            failure = failures[0]
            warnings.append(
                "This is the best trial of the search, not validated: no configuration ran to its end in a fresh "
                f"process ({describe_config(failure.config)}: it {failure.message.rstrip('.')}). Fix that first: it "
                "may be a bad sample, or a port, a lock or a download that each start needs."
            )
        validation = replace(validation, baseline=CandidateRuns(plan.baseline), runs=0)
    if interruption is None and not warnings and validation.runs < MIN_RUNS:
        warnings.append(f"--timeout left time for {validation.runs} of {MIN_RUNS} validation runs: results may be off.")
    search = schema.SearchRecord(
        trials=tuple(_summarize_trial(number, one, plan) for number, one in enumerate(found.records, start=1)),
        sampler=plan.request.sampler,
        seed=plan.request.seed,
        seconds=seconds,
        phase_seconds=dict(phase_seconds),
        stop_reason=found.stop_reason,
        scaling=trace_workers(plan, found, decision.config),
        batch_samples=batch_samples(decision.config, plan.workload),
    )
    return schema.TunedProfile(
        label=plan.request.profile,
        hardware=plan.hardware,
        software=plan.workload.software,
        workload=identify(plan.request.workload, plan.workload),
        config=decision.config,
        result=_build_result(plan, found, validation, decision, warnings),
        budgets=plan.budgets,
        search=search,
        request=plan.request.record(),
        is_complete=interruption is None,
        created_at=datetime.now(UTC).replace(microsecond=0),
    )


def _explain_failures(records: Sequence[TrialRecord], validation: Validation) -> Exception:
    if not records:
        return UsageError("No trial was run: profiling took all the time of --timeout. Allow more time.")
    failures = [failure for one in validation.measured for failure in one.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"  {failure.status}: it {failure.message}" for failure in failures)
    skipped = sum(record.result is None for record in records)
    first = f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."
    return NoFeasibleConfigError("\n".join([first, *list(examples)[:5]]))


def _build_result(
    plan: Plan, found: SearchOutcome, validation: Validation, decision: Decision, warnings: Sequence[str]
) -> schema.ProfileResult:
    config, rate, workload = decision.config, decision.samples_per_second, plan.workload
    runs = next((one for one in validation.measured if one.config == config and one.rates), None)
    if runs is None:  # not validated: the search measured it
        runs = CandidateRuns(config)
        for number, record in enumerate(found.records, start=1):
            if record.config == config and record.result is not None:
                runs.add(number, record.result, plan.request.epochs)
    bound, base, copies = plan.upper_bound(config.dataloader.batch_size), validation.baseline, workload.h2d
    wait_share = runs.wait_share if runs.rates else max(0.0, 1 - rate / bound)
    bottleneck = find_bottleneck(config, workload, plan.usable_cpus, wait_share, has_epochs=runs.has_epochs)
    numbers = {name: value for name, value in decision._asdict().items() if name != "config"}
    facts = {"config": base.config, "samples_per_second": base.rate, "wait_share": base.wait_share}
    facts["bottleneck"] = find_bottleneck(
        base.config, workload, plan.usable_cpus, base.wait_share, has_epochs=base.has_epochs
    )
    return schema.ProfileResult(
        **numbers,
        validation_runs=validation.runs,
        epochs=plan.request.epochs,
        baseline=schema.Baseline(description=plan.name_baseline(base.config), **facts) if base.rate else None,
        decision="no_change" if config == plan.baseline else "faster",
        upper_bound_samples_per_second=bound if plan.has_reliable_upper_bound(config, rate) else None,
        wait_share=wait_share,
        batch_waits=runs.batch_waits,
        bottleneck=bottleneck,
        peak_host_bytes=runs.peak_host_bytes,
        peak_shm_bytes=runs.peak_shm_bytes,
        peak_gpu_bytes=runs.peak_gpu_bytes,
        copy_bytes_per_second=rate * workload.sample_bytes if copies else None,
        copy_bound_bytes_per_second=copies.of(pinned=config.dataloader.pin_memory) if copies else None,
        rank_wait_seconds=runs.rank_wait_seconds,
        candidates=tuple(one.record() for one in validation.measured),
        contributions=estimate_contributions(plan, found, validation, decision),
        advice=tuple(suggest_improvements(plan, config, bottleneck)),
        warnings=(*workload.notes, *found.warnings, *warnings, *_list_warnings(plan, validation, runs)),
    )


def _list_warnings(plan: Plan, validation: Validation, runs: CandidateRuns) -> Iterator[str]:
    loaders = [one for one in plan.space.configs if one.dataloader.num_workers]
    if not (loaders or plan.machine.shm_writable or plan.request.is_asked("num_workers")):
        yield "No workers were tried: they need /dev/shm, which is not writable. Mount it writable."
    if loaders and not any(one.dataloader.num_workers for one in plan.candidates):
        names = ("num_workers", "prefetch_factor", "batch_size")
        least = min(loaders, key=lambda one: [SETTINGS[name].read(one) or 1 for name in names])
        excess = plan.describe_excess(least)
        yield f"No number of workers is within the limits ({excess}): allow more, or use a smaller --batch-size."
    yield from validation.noise
    for one in (one for one in validation.measured if one.failures and validation.runs):
        tried, failed = len(one.rates) + len(one.failures), len(one.failures)
        yield f"{describe_config(one.config)}: {failed} of {tried} validation runs failed: it {one.failures[0].message}"
    is_stream = plan.workload.kind == "iterable" and runs.config.dataloader.num_workers > 1
    if is_stream and validation.runs and not runs.has_epochs:
        yield (
            "No run reached the end of an epoch, whose length is unknown: this is the throughput within an epoch. If "
            "one worker has more data than others, the end of the epoch is slower."
        )
    samples = plan.workload.samples or plan.workload.counted_samples or 0
    delivered = max((sum(rank.samples for rank in one.ranks) for one in runs.measurements), default=0)
    if samples and delivered > REPEATED_DATA_RATIO * samples:
        yield (
            f"All ranks together delivered {delivered:,} samples in an epoch of a dataset of {samples:,}: each goes "
            "through all of it. Pass a DistributedSampler to the loader, or split an iterable dataset by rank."
        )
    if plan.workload.loader_note is not None:
        yield plan.workload.loader_note


def estimate_contributions(
    plan: Plan, found: SearchOutcome, validation: Validation, decision: Decision
) -> tuple[schema.Contribution, ...]:
    """Estimate the gain of each setting, from the baseline to the validated configuration one setting at a time.

    The model of the search estimates the steps, and they end at the measured throughput. A step from or to a
    configuration that was never tried is as uncertain as a guess. A single step has the measured speedup.
    """
    if not validation.runs or validation.interrupted_by or decision.config == plan.baseline or decision.speedup is None:
        return ()
    goal, path, settings = setting_values(decision.config), [plan.baseline], list[str]()
    for name in SETTINGS:
        config = plan.change(path[-1], {name: goal[name]})
        if config != path[-1]:
            path.append(config)
            settings.append(f"{name}={goal[name]}")
    tried = {record.config for record in found.records if record.is_feasible}
    rows, rate = list[schema.Contribution](), decision.samples_per_second
    gains = zip(settings, path, path[1:], found.model.surrogate.predict_speedups(path), strict=False)
    for setting, before, after, (ratio, log_error) in reversed(list(gains)):
        error = log_error if {before, after} <= tried else math.hypot(log_error, GUESS_ERROR)
        factor = math.exp(NORMAL_QUANTILE * error)
        is_single = len(settings) == 1
        step: dict[str, Any] = {"setting": setting, "samples_per_second": rate, "speedup": ratio}
        step["speedup_ci95"] = ratio / factor, ratio * factor
        if is_single:
            step |= {"speedup": decision.speedup, "speedup_ci95": decision.speedup_ci95}
        rows.append(schema.Contribution(**step, is_estimate=not is_single))
        rate /= step["speedup"]
    return tuple(reversed(rows))


def _summarize_trial(number: int, record: TrialRecord, plan: Plan) -> schema.TrialSummary:
    predicted, result = min(record.predicted, MAX_RATE), record.result
    facts: dict[str, Any] = {"number": number, "config": record.config, "predicted_samples_per_second": predicted}
    if result is None:
        exceeded = plan.describe_excess(record.config)
        reason = f"Predicted over a limit: {exceeded}." if exceeded else "Ruled out by earlier trials."
        return schema.TrialSummary(status="skipped", reason=reason, **facts)
    facts |= {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
    if not record.is_feasible:
        return schema.TrialSummary(status="failed", reason=f"It {result.message.rstrip('.')}.", **facts)
    status = "stopped_early" if record.is_stopped_early else "completed"
    facts |= {"samples_per_second": record.samples_per_second, "relative_error": record.relative_error}
    return schema.TrialSummary(status=status, **facts)


def trace_workers(plan: Plan, found: SearchOutcome, config: LoaderConfig) -> dict[int, float]:
    """Trace the expected throughput over the workers, within the limits; without workers from the default values."""
    few = config.dataloader.num_workers
    path = [plan.change(config, {"num_workers": one}) for one in sorted({*plan.space.choices["num_workers"], few})]
    path = [one if few or not one.dataloader.num_workers else plan.default_variant(one) for one in path]
    path = [one for one in path if one == config or not plan.describe_excess(one)]
    rates = [min(rate, MAX_RATE) for rate in found.model.surrogate.predict(path)]
    return {one.dataloader.num_workers: rate for one, rate in zip(path, rates, strict=True)}


def suggest_improvements(plan: Plan, config: LoaderConfig, bottleneck: schema.Bottleneck) -> Iterator[str]:
    """Yield a sentence for each improvement that the profile of the workload shows, the most useful first."""
    workload, loader, is_loading = plan.workload, config.dataloader, bottleneck in ("io", "cpu")
    size = batch_samples(config, workload)
    collate = workload.collate_cost.at(size)
    load = max(workload.load_cost.at(size), collate, 1e-9)  # measured in this process, and in a worker
    if workload.epoch_state is not None and loader.num_workers and not loader.persistent_workers:
        yield (
            f"The dataset may change between epochs ({workload.epoch_state}), and persistent workers would keep their "
            "copies of it. If it does not change, try --set persistent_workers=true."
        )
    if bottleneck == "cpu" and has_spinning_step(workload):
        yield (
            f"The step keeps {workload.step_cpus:.1f} CPUs busy, also while its threads wait for each other: try "
            "OMP_WAIT_POLICY=PASSIVE in the environment, or torch.set_num_threads(1)."
        )
    is_slow = workload.cpu_share < IO_CPU_SHARE and (is_loading or bottleneck == "epoch")
    if is_slow and workload.kind == "map" and not workload.has_getitems and workload.batching != "user":
        yield (
            f"Loading a sample takes {format_seconds(load / size)}, "
            f"{1 - workload.cpu_share:.0%} of it waiting: a dataset with __getitems__(indices) could fetch a whole "
            "batch at once."
        )
    if bottleneck in ("cpu", "transfer") and collate >= COLLATE_SHARE * load:
        yield (
            f"Collating takes {collate / load:.0%} of loading a batch ({format_seconds(collate)} of "
            f"{format_seconds(load)}): use a faster collate_fn or smaller samples (uint8, converted in the step)."
        )
    if is_loading and (lines := workload.costly_lines[:MAX_LINES]):
        named = ", ".join(f"{line.share:.0%} in {Path(line.file).name}:{line.line} (`{line.source}`)" for line in lines)
        yield f"Loading spends its time in your code: {named}."
    if is_loading and loader.num_workers:
        yield from _find_limit(plan, config, size)
    if bottleneck == "epoch":
        keep = "" if loader.persistent_workers or workload.epoch_state else "set persistent_workers=True, or "
        repeat = "use a sampler that repeats" if workload.kind == "map" else "have __iter__ repeat"
        yield f"Every short epoch fills the queue again: {keep}{repeat} the data in one epoch."
    if bottleneck == "copy" and workload.h2d is not None:
        yield (
            f"Copying to the device is the bottleneck, at {format_bytes(workload.h2d.of(pinned=loader.pin_memory))}/s: "
            "send smaller samples (uint8 or float16 instead of float32, converted on the device)."
        )


def _find_limit(plan: Plan, config: LoaderConfig, batch_size: int) -> Iterator[str]:
    most = max_useful_workers(plan.workload, batch_size, plan.usable_cpus)
    for workers in SETTINGS["num_workers"].choices:
        larger = plan.change(config, {"num_workers": workers})
        excess, gain = plan.describe_excess(larger), plan.predict(larger) / plan.predict(config)
        if config.dataloader.num_workers < workers <= most and excess and gain >= WORTHWHILE_GAIN:
            yield f"{describe_config(larger)} is predicted to be {gain:.2f}x faster, but is over a limit: {excess}."
            return
