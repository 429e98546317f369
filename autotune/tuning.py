"""The story of one run: probe, plan, search, confirm, decide, write down."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from autotune.confirming import ROUNDS, Confirmation, Contestant
from autotune.costs import find_bottleneck
from autotune.deciding import FINALISTS, Decision, decide, pick_finalists
from autotune.errors import NoFeasibleConfigError
from autotune.exploring import Exploration
from autotune.importing import check_import_string
from autotune.limits import plan_limits
from autotune.machine import MachineProfile, read_machine
from autotune.messages import RunTrial, WorkloadProfile
from autotune.planning import Plan, make_plan
from autotune.profiles import check_writable, save_profile
from autotune.records import TrialRecord
from autotune.request import TuningRequest, WorkloadRequest
from autotune.schema import (
    Baseline,
    BatchSizeResult,
    Bottleneck,
    Hardware,
    LoaderConfig,
    ProfileResult,
    SearchRecord,
    TunedConfig,
    Value,
    WorkloadIdentity,
)
from autotune.scoring import estimate
from autotune.search import open_search
from autotune.space import BATCH_GRID, DEFAULT_BATCH_SIZE
from autotune.trial_runner import TrialRunner
from autotune.view import View

FRESH_START_SECONDS: Final = 3.0  # a fresh process, its imports and a dataset factory


class Outcome(Value):
    """What a run gave.

    Attributes:
        profile: The profile as it was written into the tuned file.
        plan: What the run had to work with.
        records: Every trial.
        runner_up: A configuration that was faster by less than the noise and larger than the one chosen.
        interrupted: Whether the run was cut short; the profile then holds the best so far.
    """

    profile: TunedConfig
    plan: Plan
    records: tuple[TrialRecord, ...]
    runner_up: LoaderConfig | None = None
    interrupted: bool = False


def tune(
    request: TuningRequest,
    *,
    run_trial: RunTrial | None = None,
    machine: MachineProfile | None = None,
    workload: WorkloadProfile | None = None,
    view: View | None = None,
) -> Outcome:
    """Find the best loader configuration for a workload on this machine, and write it down.

    Args:
        request: What to tune, and how.
        run_trial: Measures one configuration; None does so in child processes.
        machine: What the machine allows; None reads it.
        workload: Profile of the workload; None probes it in a child process.
        view: Is told what happens.

    Returns:
        The outcome; its profile has been written to `request.output`.

    Raises:
        UsageError: The request asks for what cannot be.
        WorkloadError: The user's code fails where no configuration could help.
        NoFeasibleConfigError: No configuration works within the limits.
        StudyError: The record of trials cannot be used.
        OutputError: The tuned file cannot be written.
        KeyboardInterrupt: Cut short before any configuration was measured.
    """
    started = time.monotonic()
    view = view or View()
    check_request(request)
    with _open_runner(request, view) as runner:
        plan = _prepare(request, machine or read_machine(), workload, runner, view)
        search = open_search(request, plan.space, plan.hardware)
        search.reap()
        search.enqueue(plan.first_configs())
        run_trial = run_trial or runner.run
        exploration = Exploration(plan, search, run_trial, view, _plan_deadline(request, started))
        confirmation = Confirmation(plan, run_trial, view)
        view.show_resumed(search.name, len(exploration.records))
        stopped, interrupted = "interrupted", False
        try:
            stopped = exploration.run()
            view.show_stop(stopped)
            confirmation.run(pick_finalists(exploration.records))
            search.finish()
        except KeyboardInterrupt:
            interrupted = True
    decision = _decide(plan, exploration.records, confirmation, interrupted)
    summary = _summarize_search(plan, exploration.records, search.name, time.monotonic() - started, stopped)
    profile = _make_profile(plan, exploration.records, confirmation, decision, summary)
    save_profile(Path(request.output), profile)
    return Outcome(
        profile=profile,
        plan=plan,
        records=tuple(exploration.records),
        runner_up=decision.runner_up,
        interrupted=interrupted,
    )


def plan_only(request: TuningRequest, *, view: View | None = None) -> Plan:
    """Probe and plan as `tune` does, and stop before the first trial.

    Args:
        request: What to tune, and how.
        view: Is told what happens.

    Returns:
        The plan.

    Raises:
        UsageError: The request asks for what cannot be.
        WorkloadError: The user's code fails where no configuration could help.
        NoFeasibleConfigError: Not even the smallest batch fits the memory budget.
    """
    view = view or View()
    check_request(request)
    with _open_runner(request, view) as runner:
        return _prepare(request, read_machine(), None, runner, view)


def check_request(request: TuningRequest) -> None:
    """Refuse what can be seen to fail, before anything is started.

    Args:
        request: What the user asked for.

    Raises:
        UsageError: An import string is malformed.
        OutputError: The output path cannot be written.
        ProfileError: Something else than a tuned file lies at the output path.
    """
    check_import_string("--dataset", request.workload.dataset)
    if request.workload.step is not None:
        check_import_string("--step", request.workload.step)
    if request.workload.collate is not None:
        check_import_string("--collate", request.workload.collate)
    check_writable(Path(request.output))


@contextmanager
def _open_runner(request: TuningRequest, view: View) -> Iterator[TrialRunner]:
    try:
        with TrialRunner(request.workload, request.stall_seconds, view.show_progress) as runner:
            yield runner
    finally:
        view.close()


def _prepare(
    request: TuningRequest, machine: MachineProfile, workload: WorkloadProfile | None, runner: TrialRunner, view: View
) -> Plan:
    """Probe machine and workload, plan limits and space."""
    limits = plan_limits(machine, request)
    view.show_machine(machine, limits)
    if workload is None:
        workload = runner.probe(_choose_probe_sizes(request), limits)
    limits = plan_limits(machine, request, workload.gpu_memory_bytes)
    runner.limit(limits)
    plan = make_plan(request, machine, workload, limits)
    view.show_workload(workload, plan.space, plan.ceiling)
    return plan


def _choose_probe_sizes(request: TuningRequest) -> tuple[int, int]:
    """Choose the usual and the largest batch size that the search will meet."""
    fixed = request.fixed.get("batch_size")
    sizes = (fixed,) if isinstance(fixed, int) else request.batch_sizes or BATCH_GRID
    return min(sizes, key=lambda size: abs(size - DEFAULT_BATCH_SIZE)), max(sizes)


def _plan_deadline(request: TuningRequest, started: float) -> float | None:
    """Leave as much of the time allowed as the confirmation will need, but never all of it."""
    if request.timeout_seconds is None:
        return None
    reserve = ROUNDS * (FINALISTS + 1) * (request.trial_seconds + FRESH_START_SECONDS)
    return started + max(request.timeout_seconds - reserve, request.timeout_seconds / 2)


def _decide(plan: Plan, records: Sequence[TrialRecord], confirmation: Confirmation, interrupted: bool) -> Decision:
    decision = decide(confirmation.baseline, confirmation.finalists) if confirmation.rounds else None
    if decision is not None:
        return decision
    best = max((record for record in records if record.is_feasible), key=lambda record: record.score, default=None)
    if best is not None and interrupted:
        return _decide_unconfirmed(plan, records, best)
    if interrupted:
        raise KeyboardInterrupt
    raise NoFeasibleConfigError(_explain_failures(records, confirmation))


def _decide_unconfirmed(plan: Plan, records: Sequence[TrialRecord], best: TrialRecord) -> Decision:
    """Take the best of the search as it is; nothing was measured twice, so there is no interval."""
    base = next((record for record in records if record.config == plan.baseline and record.is_feasible), None)
    assert best.result is not None
    assert best.result.measurement is not None
    found = estimate(best.result.measurement, best.config, plan.request.epochs)
    return Decision(
        config=best.config,
        verdict="faster",
        samples_per_second=best.score,
        interval=None,
        wait_fraction=found.wait_fraction,
        speedup=best.score / base.score if base is not None else None,
        speedup_interval=None,
    )


def _explain_failures(records: Sequence[TrialRecord], confirmation: Confirmation) -> str:
    contestants = (confirmation.baseline, *confirmation.finalists)
    failures = [contestant.failure for contestant in contestants]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"{failure.kind}: it {failure.message}" for failure in failures if failure is not None)
    skipped = sum(record.fate == "skipped" for record in records)
    lines = [f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."]
    return "\n".join([*lines, *(f"  {example}" for example in list(examples)[:5])])


def _make_profile(
    plan: Plan,
    records: Sequence[TrialRecord],
    confirmation: Confirmation,
    decision: Decision,
    summary: SearchRecord,
) -> TunedConfig:
    request, workload = plan.request, plan.workload
    identity = WorkloadIdentity(
        dataset=request.workload.dataset,
        dataset_args=request.workload.dataset_args,
        samples=workload.samples,
        sample_bytes=workload.sample_bytes,
        step=request.workload.describe_step(),
    )
    return TunedConfig(
        name=request.profile or make_profile_name(plan.hardware, request.workload),
        hardware=plan.hardware,
        software=workload.software,
        workload=identity,
        dataloader=decision.config.dataloader,
        process=decision.config.process,
        result=_make_result(plan, records, confirmation, decision),
        limits=plan.limits.record(),
        search=summary,
        created_at=datetime.now(UTC).replace(microsecond=0),
    )


def make_profile_name(hardware: Hardware, workload: WorkloadRequest) -> str:
    """Name a profile after its machine and workload, as in `h100x1-12c-a41f`.

    Args:
        hardware: The machine.
        workload: The workload.

    Returns:
        The same name for the same workload on the same kind of machine.
    """
    digest = hashlib.sha256(workload.model_dump_json(exclude={"working_dir"}).encode()).hexdigest()[:4]
    cpus = f"{hardware.usable_cpus:g}c"
    if hardware.gpu is None:
        return f"cpu-{cpus}-{digest}"
    model = re.search(r"[A-Z]+\d\w*", hardware.gpu)
    slug = (model[0] if model else hardware.gpu.split()[-1]).lower()
    return f"{slug}x{hardware.gpu_count}-{cpus}-{digest}"


def _make_result(
    plan: Plan, records: Sequence[TrialRecord], confirmation: Confirmation, decision: Decision
) -> ProfileResult:
    config = decision.config
    winner = next(
        (
            contestant
            for contestant in (confirmation.baseline, *confirmation.finalists)
            if contestant.config == config and contestant.results
        ),
        None,
    )
    seen = winner or _as_contestant(records, config, plan.request.epochs)
    bottleneck = find_bottleneck(config, plan.workload, plan.machine.usable_cpus, decision.wait_fraction)
    ceiling = plan.ceiling_of(config.dataloader.batch_size)
    return ProfileResult(
        samples_per_second=decision.samples_per_second,
        samples_per_second_ci95=decision.interval,
        confirmed_rounds=confirmation.rounds,
        epochs=plan.request.epochs,
        baseline=_describe_baseline(plan, confirmation.baseline),
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_interval,
        verdict=decision.verdict,
        ceiling_samples_per_second=ceiling if plan.knows_ceiling(config, decision.samples_per_second) else None,
        data_wait_fraction=decision.wait_fraction,
        bottleneck=cast("Bottleneck", bottleneck),
        peak_host_bytes=seen.peak_host_bytes,
        peak_shm_bytes=seen.peak_shm_bytes,
        peak_gpu_bytes=seen.peak_gpu_bytes,
        by_batch_size=_rank_batch_sizes(records),
        warnings=plan.workload.notes,
    )


def _as_contestant(records: Sequence[TrialRecord], config: LoaderConfig, epochs: int) -> Contestant:
    """Take what the search saw of a configuration, where the final never measured it."""
    contestant = Contestant(config)
    for record in records:
        if record.config == config and record.result is not None:
            contestant.note(record.result, epochs)
    return contestant


def _describe_baseline(plan: Plan, baseline: Contestant) -> Baseline | None:
    if baseline.rate <= 0:
        return None
    return Baseline(
        description="your DataLoader's settings" if plan.workload.baseline else "PyTorch's defaults",
        dataloader=baseline.config.dataloader,
        process=baseline.config.process,
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
        BatchSizeResult(batch_size=size, dataloader=best[size].config.dataloader, samples_per_second=best[size].score)
        for size in sorted(best)
    )


def _summarize_search(
    plan: Plan, records: Sequence[TrialRecord], study: str, seconds: float, stopped: str
) -> SearchRecord:
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
        stopped=stopped,
    )
