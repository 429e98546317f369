"""The story of one run: probe, plan, search, confirm, decide, write down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from autotune.ablating import Ablation
from autotune.confirming import ROUNDS, Confirmation
from autotune.deciding import FINALISTS, Decision, decide, pick_finalists
from autotune.errors import NoFeasibleConfigError
from autotune.evidence import gather_evidence
from autotune.exploring import Exploration, find_best
from autotune.importing import check_import_string
from autotune.limits import plan_limits
from autotune.machine import MachineProfile, read_machine
from autotune.messages import RunTrial, WorkloadProfile
from autotune.noise import NoiseWatch
from autotune.outcome import Outcome, make_profile, summarize_search
from autotune.planning import Plan, make_plan
from autotune.profiles import check_writable, save_profile
from autotune.records import TrialRecord
from autotune.request import TuningRequest
from autotune.scoring import estimate
from autotune.search import open_search
from autotune.space import BATCH_GRID, DEFAULT_BATCH_SIZE
from autotune.trial_runner import TrialRunner
from autotune.view import View

FRESH_START_SECONDS: Final = 3.0  # a fresh process, its imports and a dataset factory


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
        noise = NoiseWatch(plan.machine.usable_cpus) if run_trial is None else None
        run_trial = run_trial or runner.run
        deadline = started + request.timeout_seconds if request.timeout_seconds is not None else None
        exploration = Exploration(plan, search, run_trial, view, _plan_search_end(request, deadline))
        confirmation = Confirmation(plan, run_trial, view, noise)
        ablation = Ablation(plan, run_trial, view)
        view.show_resumed(search.name, len(exploration.records))
        stopped, interrupted = "interrupted", False
        try:
            stopped = exploration.run()
            view.show_stop(stopped)
            confirmation.run(pick_finalists(exploration.records, exploration.expect()))
            search.finish()
            _explain(ablation, confirmation, deadline)
        except KeyboardInterrupt:
            interrupted = True
    decision = _decide(plan, exploration.records, confirmation, interrupted)
    profile = make_profile(
        plan,
        exploration.records,
        confirmation,
        decision,
        ablation.rows,
        summarize_search(plan, exploration.records, search.name, time.monotonic() - started, stopped),
        gather_evidence(plan, exploration.records, decision.config, exploration.predict),
    )
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
    view.show_plan(plan)
    return plan


def _choose_probe_sizes(request: TuningRequest) -> tuple[int, int]:
    """Choose the usual and the largest batch size that the search will meet."""
    fixed = request.fixed.get("batch_size")
    sizes = (fixed,) if isinstance(fixed, int) else request.batch_sizes or BATCH_GRID
    return min(sizes, key=lambda size: abs(size - DEFAULT_BATCH_SIZE)), max(sizes)


def _plan_search_end(request: TuningRequest, deadline: float | None) -> float | None:
    """Leave as much of the time allowed as the confirmation will need, but never all of it."""
    if request.timeout_seconds is None or deadline is None:
        return None
    reserve = ROUNDS * (FINALISTS + 1) * (request.trial_seconds + FRESH_START_SECONDS)
    return deadline - min(reserve, request.timeout_seconds / 2)


def _explain(ablation: Ablation, confirmation: Confirmation, deadline: float | None) -> None:
    """Measure what each setting gave, where there is an answer to explain and time left for it."""
    decision = decide(confirmation.baseline, confirmation.finalists)
    in_time = deadline is None or time.monotonic() < deadline
    if decision is not None and decision.verdict == "faster" and confirmation.baseline.rate and in_time:
        ablation.run(confirmation.baseline.rate, decision.config, decision.samples_per_second)


def _decide(plan: Plan, records: Sequence[TrialRecord], confirmation: Confirmation, interrupted: bool) -> Decision:
    decision = decide(confirmation.baseline, confirmation.finalists) if confirmation.rounds else None
    if decision is not None:
        return decision
    best = find_best(records)
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
