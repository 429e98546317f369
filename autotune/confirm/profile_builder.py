"""What is written down of a run: the profile in the tuned file, and the outcome that the caller gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from autotune.config import FrozenModel, LoaderConfig
from autotune.confirm.ablation import Ablation
from autotune.confirm.advice import suggest_improvements
from autotune.confirm.confirmation import Confirmation, ConfirmationRuns
from autotune.confirm.decision import Decision
from autotune.confirm.evidence import build_evidence
from autotune.knobs import describe_config
from autotune.profiles.naming import resolve_profile_name
from autotune.profiles.schema import (
    AblationStep,
    Baseline,
    BatchSizeResult,
    ConfirmedRounds,
    ProfileResult,
    SearchRecord,
    TunedProfile,
)
from autotune.search.cost_model import find_bottleneck
from autotune.search.loop import SearchOutcome
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord, measure_prediction_error
from autotune.units import format_bytes


class TuningResult(FrozenModel):
    """What a run gave.

    Attributes:
        profile: The profile as it was written into the tuned file.
        plan: What the run had to work with.
        records: Every trial.
        runner_up: A configuration that was faster by less than the noise and larger than the one chosen.
        interrupted: Whether the run was cut short; the profile then holds the best so far.
    """

    profile: TunedProfile
    plan: Plan
    records: tuple[TrialRecord, ...]
    runner_up: LoaderConfig | None = None
    interrupted: bool = False


def build_profile(
    plan: Plan,
    found: SearchOutcome,
    final: Confirmation,
    decision: Decision,
    steps: Ablation,
    run: tuple[str, float],
    notes: Sequence[str] = (),
    others: Iterable[TunedProfile] = (),
) -> TunedProfile:
    """Put together what is written into the tuned file.

    Args:
        plan: What the run had to work with.
        found: What the search found.
        final: What the final measured.
        decision: The answer.
        steps: What each setting gave.
        run: Name of the study, and wall time of the run in seconds.
        notes: Sentences on the workload and on the run.
        others: The profiles that lie in the file already.

    Returns:
        The profile, under the name that was asked for, or one that is made of machine and workload.
    """
    request, workload = plan.request, plan.workload
    profile = TunedProfile(
        name=request.profile or "unnamed",
        hardware=plan.hardware,
        software=workload.software,
        workload=plan.identity,
        config=decision.config,
        result=_make_result(plan, found.records, final, decision, steps.steps, notes),
        budgets=plan.budgets.record(),
        search=summarize_search(plan, found, *run),
        evidence=build_evidence(plan, found.records, decision.config, found.predict),
        request=request.record(),
        created_at=datetime.now(UTC).replace(microsecond=0),
    )
    return profile if request.profile else resolve_profile_name(profile, others)


def _make_result(
    plan: Plan,
    records: Sequence[TrialRecord],
    confirmation: Confirmation,
    decision: Decision,
    ablation: Sequence[AblationStep],
    findings: Sequence[str],
) -> ProfileResult:
    config, workload = decision.config, plan.workload
    copies = workload.h2d
    seen = _find_measured(confirmation, config) or _as_contestant(records, config, plan.request.epochs)
    bottleneck = find_bottleneck(config, workload, plan.machine.usable_cpus, decision.wait_fraction)
    ceiling = plan.step_bound(config.dataloader.batch_size)
    return ProfileResult(
        samples_per_second=decision.samples_per_second,
        samples_per_second_ci95=decision.interval,
        confirmed_rounds=confirmation.rounds,
        epochs=plan.request.epochs,
        baseline=_describe_baseline(plan, confirmation.baseline),
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_interval,
        verdict=decision.verdict,
        ceiling_samples_per_second=ceiling
        if plan.has_reliable_step_bound(config, decision.samples_per_second)
        else None,
        data_wait_fraction=decision.wait_fraction,
        bottleneck=bottleneck,
        peak_host_bytes=seen.peak_host_bytes,
        peak_shm_bytes=seen.peak_shm_bytes,
        peak_gpu_bytes=seen.peak_gpu_bytes,
        copy_bytes_per_second=decision.samples_per_second * workload.sample_bytes if copies else None,
        copy_ceiling=copies.of(pinned=config.dataloader.pin_memory) if copies else None,
        by_batch_size=_rank_batch_sizes(records),
        rounds=tuple(_record_rounds(contestant) for contestant in confirmation.entrants),
        departures=decision.departures,
        ablation=tuple(ablation),
        advice=suggest_improvements(plan, config, bottleneck),
        warnings=(*workload.notes, *findings, *_list_doubts(confirmation), *_warn_of_growth(seen)),
    )


def _find_measured(confirmation: Confirmation, config: LoaderConfig) -> ConfirmationRuns | None:
    contestants = (confirmation.baseline, *confirmation.finalists)
    return next((one for one in contestants if one.config == config and one.results), None)


def _record_rounds(contestant: ConfirmationRuns) -> ConfirmedRounds:
    return ConfirmedRounds(
        config=contestant.config,
        samples_per_second=tuple(contestant.scores),
        failures=tuple(f"{failure.kind}: it {failure.message}" for failure in contestant.failures),
    )


def _list_doubts(confirmation: Confirmation) -> tuple[str, ...]:
    """List what disturbed the final, and what failed in it, be it once only."""
    failed = [one for one in confirmation.entrants if one.failures and confirmation.rounds]
    return (
        *confirmation.noise,
        *(
            f"{len(one.failures)} of {len(one.results)} confirming trials of {describe_config(one.config)} failed: "
            f"it {one.failures[0].message}"
            for one in failed
        ),
    )


def _warn_of_growth(seen: ConfirmationRuns) -> tuple[str, ...]:
    """Warn where the device's memory had not settled when the final ended."""
    grown = max((result.measurement.gpu_growth_bytes for result in seen.results if result.measurement), default=0)
    if not grown:
        return ()
    return (
        f"device memory still grew by {format_bytes(grown)} in the second half of a confirming trial: leave room for "
        "it, or confirm for longer with --trial-time",
    )


def _as_contestant(records: Sequence[TrialRecord], config: LoaderConfig, epochs: int) -> ConfirmationRuns:
    """Take what the search saw of a configuration, where the final never measured it."""
    contestant = ConfirmationRuns(config)
    for record in records:
        if record.config == config and record.result is not None:
            contestant.note(record.result, epochs)
    return contestant


def _describe_baseline(plan: Plan, baseline: ConfirmationRuns) -> Baseline | None:
    if baseline.rate <= 0:
        return None
    return Baseline(
        description="your DataLoader's settings" if plan.workload.baseline else "PyTorch's defaults",
        config=baseline.config,
        samples_per_second=baseline.rate,
        data_wait_fraction=sum(baseline.waits) / len(baseline.waits),
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


def summarize_search(plan: Plan, found: SearchOutcome, study: str, seconds: float) -> SearchRecord:
    """Sum up how the configuration was found."""
    records = found.records
    feasible = sum(record.is_feasible for record in records)
    skipped = sum(record.fate == "skipped" for record in records)
    return SearchRecord(
        trials=len(records),
        feasible=feasible,
        infeasible=len(records) - feasible - skipped,
        skipped=skipped,
        sampler=plan.request.sampler,
        seed=plan.request.seed,
        study=study,
        seconds=seconds,
        prediction_error=measure_prediction_error(records),
        stopped=found.stopped,
    )
