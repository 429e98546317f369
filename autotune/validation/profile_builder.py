"""What is written down of a run: the profile in the tuned file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from autotune.config import LoaderConfig
from autotune.profiles.naming import resolve_profile_name
from autotune.profiles.schema import (
    AblationStep,
    Baseline,
    BatchSizeResult,
    Bottleneck,
    ConfirmedRounds,
    ProfileResult,
    TunedProfile,
)
from autotune.profiles.search_record import PhaseTime, SearchRecord
from autotune.search.cost_model import find_bottleneck
from autotune.search.loop import SearchOutcome
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord, measure_prediction_error
from autotune.settings import describe_config
from autotune.trial.timetable import Timetable
from autotune.units import format_bytes
from autotune.validation.ablation import Ablation
from autotune.validation.advice import suggest_improvements
from autotune.validation.answer import Answer
from autotune.validation.decision import Decision
from autotune.validation.evidence import build_evidence
from autotune.validation.ranks import describe_late_rank, describe_multiplied_data, sum_up_ranks
from autotune.validation.rounds import Validation
from autotune.validation.runs import CandidateRuns


def build_profile(
    plan: Plan,
    found: SearchOutcome,
    answer: Answer,
    steps: Ablation,
    search: SearchRecord,
    notes: Sequence[str] = (),
    others: Iterable[TunedProfile] = (),
) -> TunedProfile:
    """Put together what is written into the tuned file; a name that is made differs from those of the others."""
    request, workload = plan.request, plan.workload
    profile = TunedProfile(
        name=request.profile or "unnamed",
        hardware=plan.hardware,
        software=workload.software,
        workload=plan.identity,
        config=answer.decision.config,
        result=_make_result(plan, found.records, answer, steps.steps, notes),
        budgets=plan.budgets.record(),
        search=search,
        evidence=build_evidence(plan, found.records, answer.decision.config, found.predict),
        request=request.record(),
        created_at=datetime.now(UTC).replace(microsecond=0),
    )
    return profile if request.profile else resolve_profile_name(profile, others)


def _make_result(
    plan: Plan,
    records: Sequence[TrialRecord],
    answer: Answer,
    ablation: Sequence[AblationStep],
    findings: Sequence[str],
) -> ProfileResult:
    decision, confirmation = answer.decision, answer.final
    config, workload = decision.config, plan.workload
    copies, size = workload.h2d, config.dataloader.batch_size
    seen = _find_confirmed(confirmation, config) or _collect_searched(records, config, plan.request.epochs)
    bottleneck = find_bottleneck(config, workload, plan.local_machine.usable_cpus, decision.wait_share)
    is_bound_known = plan.has_reliable_upper_bound(config, decision.samples_per_second)
    return ProfileResult(
        samples_per_second=decision.samples_per_second,
        samples_per_second_ci95=decision.ci95,
        validation_runs=confirmation.rounds,
        epochs=plan.request.epochs,
        is_predicted=not plan.request.trials,
        baseline=_describe_baseline(plan, confirmation.baseline),
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_ci95,
        verdict=decision.verdict,
        upper_bound_samples_per_second=plan.upper_bound(size) if is_bound_known else None,
        wait_share=decision.wait_share,
        batch_waits=seen.batch_waits,
        bottleneck=bottleneck,
        peak_host_bytes=seen.peak_host_bytes,
        peak_shm_bytes=seen.peak_shm_bytes,
        peak_gpu_bytes=seen.peak_gpu_bytes,
        copy_bytes_per_second=decision.samples_per_second * workload.sample_bytes if copies else None,
        copy_ceiling=copies.of(pinned=config.dataloader.pin_memory) if copies else None,
        by_batch_size=_rank_batch_sizes(records),
        ranks=sum_up_ranks(seen.measured),
        rounds=tuple(_record_rounds(entrant) for entrant in confirmation.entrants),
        departures=decision.departures,
        ablation=tuple(ablation),
        advice=_list_advice(plan, decision, bottleneck, seen),
        warnings=(*workload.notes, *findings, *_list_doubts(confirmation), *_warn_of_what_was_seen(plan, seen)),
    )


def _list_advice(plan: Plan, decision: Decision, bottleneck: Bottleneck, seen: CandidateRuns) -> tuple[str, ...]:
    waits = seen.batch_waits
    shown = (
        None if waits is None else waits.describe_rhythm(decision.wait_share),
        describe_late_rank(sum_up_ranks(seen.measured), decision.wait_share),
    )
    return (*filter(None, shown), *suggest_improvements(plan, decision.config, bottleneck))


def _find_confirmed(confirmation: Validation, config: LoaderConfig) -> CandidateRuns | None:
    entrants = (confirmation.baseline, *confirmation.finalists)
    return next((entrant for entrant in entrants if entrant.config == config and entrant.results), None)


def _record_rounds(entrant: CandidateRuns) -> ConfirmedRounds:
    return ConfirmedRounds(
        config=entrant.config,
        samples_per_second=tuple(entrant.scores),
        failures=tuple(f"{failure.kind}: it {failure.message}" for failure in entrant.failures),
    )


def _list_doubts(confirmation: Validation) -> tuple[str, ...]:
    """List what disturbed the confirmation, and what failed in it, be it once only."""
    failed = confirmation.failed if confirmation.rounds else ()
    return (
        *confirmation.noise,
        *(
            f"{len(entrant.failures)} of {len(entrant.results)} confirming trials of {describe_config(entrant.config)} "
            f"failed: it {entrant.failures[0].message}"
            for entrant in failed
        ),
    )


def _warn_of_what_was_seen(plan: Plan, seen: CandidateRuns) -> tuple[str, ...]:
    """Warn where the device's memory had not settled in the end, and where ranks repeat each other's data."""
    growth = (
        f"device memory still grew by {format_bytes(seen.gpu_growth_bytes)} in the second half of a confirming trial: "
        "leave room for it, or confirm for longer with --trial-time"
    )
    multiplied = describe_multiplied_data(seen.measured, plan.workload.samples or plan.workload.counted_samples)
    return tuple(filter(None, (growth if seen.gpu_growth_bytes else None, multiplied)))


def _collect_searched(records: Sequence[TrialRecord], config: LoaderConfig, epochs: int) -> CandidateRuns:
    """Take what the search saw of a configuration, where the confirmation never measured it."""
    seen = CandidateRuns(config)
    for record in records:
        if record.config == config and record.result is not None:
            seen.note(record.result, epochs)
    return seen


def _describe_baseline(plan: Plan, baseline: CandidateRuns) -> Baseline | None:
    if baseline.rate <= 0:
        return None
    return Baseline(
        description="your DataLoader's settings" if plan.workload.baseline else "PyTorch's defaults",
        config=baseline.config,
        samples_per_second=baseline.rate,
        wait_share=baseline.wait_share,
    )


def _rank_batch_sizes(records: Sequence[TrialRecord]) -> tuple[BatchSizeResult, ...]:
    best: dict[int, TrialRecord] = {}
    for record in records:
        size = record.config.dataloader.batch_size
        if size is not None and record.is_feasible and (size not in best or record.score > best[size].score):
            best[size] = record
    return tuple(
        BatchSizeResult(batch_size=size, config=best[size].config, samples_per_second=best[size].score)
        for size in sorted(best)
    )


def summarize_search(plan: Plan, found: SearchOutcome, study: str, timetable: Timetable) -> SearchRecord:
    """Sum up how the configuration was found."""
    records = found.records
    feasible = sum(record.is_feasible for record in records)
    skipped = sum(record.status == "skipped" for record in records)
    return SearchRecord(
        trials=len(records),
        feasible=feasible,
        infeasible=len(records) - feasible - skipped,
        skipped=skipped,
        sampler=plan.request.sampler,
        seed=plan.request.seed,
        study=study,
        seconds=timetable.passed_seconds,
        time_spent=tuple(PhaseTime(phase=phase, **spent) for phase, spent in timetable.spent.sum_up().items()),
        prediction_error=measure_prediction_error(records),
        stopped=found.stopped,
    )
