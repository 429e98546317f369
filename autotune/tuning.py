"""The story of one run: probe, plan, search, confirm, decide, write down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from autotune.confirm.ablation import Ablation
from autotune.confirm.confirmation import ROUNDS, Confirmation, Contestant
from autotune.runner.sandbox import Containment, find_containment
from autotune.confirm.decision import FINALISTS, Decision, decide, pick_finalists
from autotune.errors import (
    NoFeasibleConfigError,
    OutputError,
    ProfileError,
    TrialError,
    UnsavedError,
    UsageError,
    WorkloadError,
)
from autotune.confirm.evidence import gather_evidence
from autotune.search.loop import Exploration, find_best
from autotune.child.import_string import check_import_string
from autotune.system.signals import finish_first
from autotune.trial.budgets import plan_limits
from autotune.system.machine import MachineProfile, read_machine
from autotune.trial.protocol import RunTrial, TrialRequest, TrialResult, WorkloadProfile
from autotune.confirm.interference import NoiseWatch
from autotune.confirm.profile_builder import Outcome, make_profile, summarize_search
from autotune.search.plan import Plan, make_plan
from autotune.search.trial_record import TrialRecord
from autotune.report.text import describe_config
from autotune.request import TuningRequest, WorkloadRequest, lacks_password
from autotune.profiles.schema import SCHEMA_VERSION, Contribution, LoaderConfig, TunedConfig, TunedFile
from autotune.trial.throughput import estimate
from autotune.search.sampler import Search, open_search
from autotune.search.space import BATCH_GRID, DEFAULT_BATCH_SIZE
from autotune.search.study import open_storage
from autotune.trial.timetable import Timetable
from autotune.runner.runner import TrialRunner
from autotune.profiles.file import check_writable, format_file, peek, save_profile
from autotune.progress import View
from autotune.search.warm_start import plan_warm_start

FEWEST_COMPARED: Final = 2  # configurations that work, for the best of them to be worth writing down
FINALS: Final = ROUNDS * (FINALISTS + 1)  # measurements of a whole confirmation


def tune(
    request: TuningRequest,
    *,
    run_trial: RunTrial | None = None,
    machine: MachineProfile | None = None,
    workload: WorkloadProfile | None = None,
    view: View | None = None,
    earlier: TunedConfig | None = None,
    timetable: Timetable | None = None,
) -> Outcome:
    """Find the best loader configuration for a workload on this machine, and write it down.

    Args:
        request: What to tune, and how.
        run_trial: Measures one configuration; None does so in child processes.
        machine: What the machine allows; None reads it.
        workload: Profile of the workload; None probes it in a child process.
        view: Is told what happens.
        earlier: A result to start from, of this machine or of another one; None starts cold.
        timetable: Shares out the time that the request allows; None begins with this call.

    Returns:
        The outcome; its profile has been written to `request.output`.

    Raises:
        UsageError: The request asks for what cannot be, or allows too little time to try anything.
        WorkloadError: The user's code fails where no configuration could help.
        NoFeasibleConfigError: No configuration works within the limits.
        StudyError: The record of trials cannot be used, or another run works on it.
        TrialError: The machine refuses to run trials; the best so far has been written, where there is one.
        OutputError: The tuned file cannot be written; an `UnsavedError`, at the end of a run, holds the profile.
        KeyboardInterrupt: Cut short before any configuration was measured.
    """
    timetable = timetable or Timetable(request)
    view = view or View()
    check_request(request)
    with open_storage(request.storage) as storage, open_runner(request, view) as runner:
        plan = prepare(request, machine or read_machine(), workload, runner, view, timetable.left_seconds)
        if runner.start_seconds is not None:
            timetable.note_start(runner.start_seconds)
        timetable.begin_search(FINALS)
        with open_search(storage, request, plan.space, plan.hardware, view.show_warning) as search:
            noise = NoiseWatch(plan.machine.usable_cpus, settle=runner.close) if run_trial is None else None
            run_trial = search.sign_at(timetable.watch(insist_on_device(run_trial or runner.run)))
            warm = None if earlier is None else plan_warm_start(earlier, plan.hardware)
            run = Run(
                Exploration(plan, search, run_trial, view, timetable.allows_trial, warm),
                Confirmation(plan, run_trial, view, noise, timetable.allows_finals),
                Ablation(plan, run_trial, view),
            )
            view.show_resumed(search.name, len(run.exploration.records))
            end = _go_through(plan, run, search, view, timetable)
            with finish_first():
                runner.close()
                view.close()
                outcome = _conclude(plan, run, end, search.name, timetable.passed_seconds)
    if isinstance(end.cut_by, TrialError):
        raise TrialError(f"{end.cut_by} The best so far was written to {request.output}.")
    if isinstance(end.cut_by, WorkloadError):
        kept = f"{end.cut_by} The best so far was written to {request.output}."
        raise WorkloadError(kept, end.cut_by.details)
    return outcome


class Run(NamedTuple):
    """The parts of a run; what each has measured stays readable when it is cut short."""

    exploration: Exploration
    confirmation: Confirmation
    ablation: Ablation


class End(NamedTuple):
    """How a run ended.

    Attributes:
        stopped: Why the search did, in words.
        cut_by: What cut the run short; None when it went to its end.
        lacks: What there was no time for, as a sentence for the user; None when there was.
    """

    stopped: str
    cut_by: BaseException | None = None
    lacks: str | None = None


def _go_through(plan: Plan, run: Run, search: Search, view: View, timetable: Timetable) -> End:
    """Search, confirm and explain, as far as it goes and time allows."""
    stopped = None
    try:
        stopped = run.exploration.run()
        view.show_stop(stopped)
        if timetable.allows_finals(1):
            run.confirmation.run(_pick_finalists(plan, run.exploration))
            search.finish()
            _explain(plan, run, timetable)
    except KeyboardInterrupt as interrupt:
        return End(stopped or "interrupted", interrupt)
    except WorkloadError as error:
        search.finish()  # the next run meets other code: what failed in this one is to be tried again
        if sum(record.is_feasible for record in run.exploration.records) < FEWEST_COMPARED:
            raise
        return End("the dataset failed", error)
    except TrialError as error:
        return End(stopped or "the device was lost", error)
    except OSError as error:  # no room for a folder, no process left: what was measured is still worth having
        return End(stopped or "trials could no longer be run", _describe_refusal(error))
    return End(stopped, lacks=_describe_haste(run.confirmation))


def _describe_haste(confirmation: Confirmation) -> str | None:
    """Say what of the confirmation --timeout left no time for."""
    if confirmation.rounds >= ROUNDS:
        return None
    if not confirmation.rounds:
        return "--timeout left no time to measure the answer again in fresh processes: its throughput was seen once"
    return f"--timeout left time for {confirmation.rounds} of {ROUNDS} rounds in fresh processes"


def insist_on_device(run_trial: RunTrial) -> RunTrial:
    """End the run, rather than each trial after the other, when the device is gone.

    Args:
        run_trial: Measures one configuration.

    Returns:
        The same, but a lost device raises TrialError.
    """

    def run(request: TrialRequest) -> TrialResult:
        result = run_trial(request)
        if result.kind == "device_lost":
            raise TrialError(f"Trials can no longer be run: the last one {result.message}.", result.details)
        return result

    return run


def _describe_refusal(error: OSError) -> TrialError:
    where = f" ({error.filename})" if error.filename is not None else ""
    return TrialError(f"Trials can no longer be run: {error.strerror or error}{where}.")


def _conclude(plan: Plan, run: Run, end: End, study: str, seconds: float) -> Outcome:
    """Decide, and write down what was found."""
    records = run.exploration.records
    decision = _decide(plan, records, run.confirmation, end.cut_by)
    doubts = _strike_failed_final(plan, run.confirmation)
    summary = summarize_search(plan, records, study, seconds, end.stopped)
    evidence = gather_evidence(plan, records, decision.config, run.exploration.predict)
    output = Path(plan.request.output)
    profile = make_profile(
        plan,
        records,
        run.confirmation,
        decision,
        run.ablation.rows,
        summary,
        evidence,
        (*run.exploration.findings, *doubts, *([] if end.lacks is None else [end.lacks])),
        peek(output),
    )
    try:
        save_profile(output, profile)
    except (OutputError, ProfileError) as error:
        raise UnsavedError(
            str(error), format_file(TunedFile(schema_version=SCHEMA_VERSION, profiles=(profile,)))
        ) from None
    return Outcome(
        profile=profile,
        plan=plan,
        records=tuple(records),
        runner_up=decision.runner_up,
        interrupted=end.cut_by is not None,
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
    with open_runner(request, view) as runner:
        return prepare(request, read_machine(), None, runner, view)


def check_request(request: TuningRequest) -> None:
    """Refuse what can be seen to fail, before anything is started.

    Args:
        request: What the user asked for.

    Raises:
        UsageError: An import string is malformed, or the storage lacks its password.
        OutputError: The output path cannot be written.
        ProfileError: Something else than a tuned file lies at the output path.
    """
    check_names(request.workload)
    if request.storage is not None and lacks_password(request.storage):
        raise UsageError(
            f"The storage {request.storage} was given with a password, which is not written down: give the whole URL "
            "again with --storage, or in DLTUNE_STORAGE."
        )
    check_writable(Path(request.output))


def check_names(workload: WorkloadRequest) -> None:
    """Refuse import strings that name nothing.

    Args:
        workload: The workload that was asked for.

    Raises:
        UsageError: One is malformed.
    """
    check_import_string("--dataset", workload.dataset)
    if workload.step is not None:
        check_import_string("--step", workload.step)
    if workload.collate is not None:
        check_import_string("--collate", workload.collate)


@contextmanager
def open_runner(request: TuningRequest, view: View) -> Iterator[TrialRunner]:
    """Open what runs the trials of a request, behind the walls that it asks for; the view is closed at the end.

    Args:
        request: What to tune, and how.
        view: Is told what happens.

    Yields:
        The runner; leaving ends every process it started.
    """
    try:
        walls = find_containment() if request.isolation == "auto" else Containment()
        with TrialRunner(
            request.workload, request.stall_seconds, view.show_progress, walls, view.show_warning
        ) as runner:
            yield runner
    finally:
        view.close()


def prepare(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile | None,
    runner: TrialRunner,
    view: View,
    most_seconds: float = math.inf,
) -> Plan:
    """Probe machine and workload, plan limits and space.

    Args:
        request: What to tune, and how.
        machine: What the machine allows.
        workload: Profile of the workload; None probes it.
        runner: Runs the probe, and gets the limits.
        view: Is told what is found.
        most_seconds: What --timeout allows for the probe, in seconds.

    Returns:
        The plan.

    Raises:
        UsageError: The request asks for what cannot be, or allows too little time.
        WorkloadError: The user's code fails where no configuration could help.
        NoFeasibleConfigError: Not even the smallest batch fits the memory budget.
        TrialError: The machine refuses to run trials.
    """
    limits = plan_limits(machine, request)
    view.show_machine(machine, limits)
    if workload is None:
        try:
            workload = runner.probe(_choose_probe_sizes(request), limits, machine.usable_cpus, most_seconds)
        except OSError as error:
            raise _describe_refusal(error) from None
    limits = plan_limits(machine, request, workload)
    runner.limit(limits)
    plan = make_plan(request, machine, workload, limits)
    view.show_plan(plan)
    return plan


def _choose_probe_sizes(request: TuningRequest) -> tuple[int, int]:
    """Choose the usual and the largest batch size that the search will meet."""
    fixed = request.fixed.get("batch_size")
    sizes = (fixed,) if isinstance(fixed, int) else request.batch_sizes or BATCH_GRID
    return min(sizes, key=lambda size: abs(size - DEFAULT_BATCH_SIZE)), max(sizes)


def _pick_finalists(plan: Plan, exploration: Exploration) -> list[LoaderConfig]:
    return pick_finalists(exploration.records, plan.convention, exploration.is_legal, exploration.expect())


def _explain(plan: Plan, run: Run, timetable: Timetable) -> None:
    """Measure what each setting gave, where there is an answer to explain and time left for it."""
    decision = _judge(plan, run.confirmation)
    if decision is None or decision.verdict != "faster" or decision.speedup is None:
        return
    whole = Contribution(
        setting="all",
        samples_per_second=decision.samples_per_second,
        speedup=decision.speedup,
        speedup_ci95=decision.speedup_interval,
    )
    run.ablation.run(decision.config, whole, timetable.allows_steps)


def _judge(plan: Plan, confirmation: Confirmation) -> Decision | None:
    return decide(confirmation.baseline, confirmation.finalists, plan.convention, plan.limits)


def _decide(
    plan: Plan, records: Sequence[TrialRecord], confirmation: Confirmation, cut_by: BaseException | None
) -> Decision:
    decision = _judge(plan, confirmation) if confirmation.rounds else None
    if decision is not None:
        return decision
    best = find_best(records)
    if best is None:
        raise cut_by or NoFeasibleConfigError(_explain_failures(records, confirmation))
    return _decide_unconfirmed(plan, records, best)


def _strike_failed_final(plan: Plan, confirmation: Confirmation) -> tuple[str, ...]:
    """Forget a final in which nothing ran, for it confirms nothing; give the warning that says so."""
    failure = next((failure for entrant in confirmation.entrants for failure in entrant.failures), None)
    if failure is None or not confirmation.rounds or _judge(plan, confirmation) is not None:
        return ()
    confirmation.rounds, confirmation.baseline, confirmation.finalists = 0, Contestant(plan.baseline), []
    happened = f"{describe_config(failure.config)}: it {failure.message.rstrip('.')}"
    return (
        "This is the best of the search, unconfirmed: in fresh processes, as a training run starts, no configuration "
        f"ran to the end ({happened}). See to that first: a port, a lock or a download may be needed at each start.",
    )


def _decide_unconfirmed(plan: Plan, records: Sequence[TrialRecord], best: TrialRecord) -> Decision:
    """Take the best of the search as it is; nothing was measured twice, so there is no interval."""
    base = next((record for record in records if record.config == plan.baseline and record.is_feasible), None)
    assert best.result is not None
    assert best.result.measurement is not None
    found = estimate(best.result.measurement, best.config, plan.request.epochs)
    return Decision(
        config=best.config,
        verdict="keep" if best.config == plan.baseline else "faster",
        samples_per_second=best.score,
        interval=None,
        wait_fraction=found.wait_fraction,
        speedup=best.score / base.score if base is not None else None,
        speedup_interval=None,
    )


def _explain_failures(records: Sequence[TrialRecord], confirmation: Confirmation) -> str:
    failures = [failure for contestant in confirmation.entrants for failure in contestant.failures]
    failures += [record.result for record in records if record.result is not None and not record.is_feasible]
    examples = dict.fromkeys(f"{failure.kind}: it {failure.message}" for failure in failures)
    skipped = sum(record.fate == "skipped" for record in records)
    lines = [f"No configuration works within the limits: {len(records) - skipped} tried, {skipped} skipped."]
    return "\n".join([*lines, *(f"  {example}" for example in list(examples)[:5])])
