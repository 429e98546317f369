"""The story of one run: probe, plan, search, confirm, decide, explain, write down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from autotune.config import LoaderConfig
from autotune.errors import OutputError, ProfileError, ResultNotSavedError, TrialError, WorkloadError
from autotune.live_objects import request_for
from autotune.preparation import check_request, prepare_run
from autotune.profiles.file import read_profiles_or_empty
from autotune.profiles.saving import format_profile, save_profile
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.runner.runner import TrialRunner, start_runner
from autotune.runner.starting import Starter
from autotune.search.ask_tell import Search, open_search
from autotune.search.loop import SearchOutcome, search
from autotune.search.plan import Plan
from autotune.search.storage import open_storage
from autotune.search.trial_record import TrialRecord
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.signals import defer_interrupts
from autotune.trial.interruption import capture_interruption, raise_on_lost_device
from autotune.trial.protocol import RunTrial
from autotune.trial.timetable import Timetable
from autotune.trial.workload_profile import WorkloadProfile
from autotune.validation.ablation import Ablation, ablate, estimate_steps
from autotune.validation.answer import Answer, describe_haste, predict_answer, settle_answer
from autotune.validation.decision import select_finalists
from autotune.validation.interference import InterferenceMonitor
from autotune.validation.profile_builder import build_profile, summarize_search
from autotune.validation.rounds import ROUNDS, Validation, confirm
from autotune.validation.runs import CandidateRuns

if TYPE_CHECKING:
    from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True)
class TuningResult:
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


@overload
def tune(
    request: TuningRequest,
    *,
    run_trial: RunTrial | None = None,
    machine: MachineProfile | None = None,
    workload: WorkloadProfile | None = None,
    progress: ProgressListener | None = None,
    earlier: TunedProfile | None = None,
    timetable: Timetable | None = None,
    starter: Starter | None = None,
) -> TuningResult: ...


@overload
def tune(
    request: Iterable[Any] | Dataset[Any] | Callable[..., Any],
    *,
    progress: ProgressListener | None = None,
    **options: Any,
) -> TuningResult: ...


def tune(
    request: object,
    *,
    run_trial: RunTrial | None = None,
    machine: MachineProfile | None = None,
    workload: WorkloadProfile | None = None,
    progress: ProgressListener | None = None,
    earlier: TunedProfile | None = None,
    timetable: Timetable | None = None,
    starter: Starter | None = None,
    **options: Any,
) -> TuningResult:
    """Find the best loader configuration for a workload on this machine, and write it down.

    Args:
        request: What to tune, and how; or a loader, a dataset or a function that makes one, which trials import again
            by the name that it has in its module.
        run_trial: Measures one configuration; None does so in child processes.
        machine: What the machine allows; None reads it.
        workload: Profile of the workload; None probes it in a child process.
        progress: Is told what happens.
        earlier: A result to start from, of this machine or of another one; None starts cold.
        timetable: Shares out the time that the request allows; None begins with this call.
        starter: Starts the processes of trials; None makes one when it is needed.
        options: Beside a loader, a dataset or a function: fields of `TuningRequest` and `WorkloadRequest`.

    Returns:
        The result; its profile has been written to `request.output`.

    Raises:
        UsageError: The request asks for what cannot be, allows too little time to try anything, or holds what trials
            cannot import.
        WorkloadError: The user's code fails where no configuration could help.
        NoFeasibleConfigError: No configuration works within the limits.
        StudyError: The record of trials cannot be used, or another run works on it.
        TrialError: The machine refuses to run trials; the best so far has been written, where there is one.
        OutputError: The tuned file cannot be written; a `ResultNotSavedError`, at the end of a run, holds the profile.
        KeyboardInterrupt: Cut short before any configuration was measured.
    """
    request = request_for(request, options)
    timetable, progress = timetable or Timetable(request), progress or ProgressListener()
    check_request(request)
    with (
        open_storage(request.storage, progress.show_warning) as storage,
        start_runner(request, progress, timetable.spent, starter) as runner,
    ):
        plan = prepare_run(request, machine or read_machine(), workload, runner, progress, timetable)
        with open_search(storage, request, plan.space, plan.hardware, progress.show_warning) as study:
            measure = study.sign_at(timetable.watch(raise_on_lost_device(run_trial or runner.run)))
            found = search(plan, study, measure, progress, timetable.allows_trial, earlier)
            settle = runner.close if run_trial is None else None
            final = _confirm(plan, found, study, measure, progress, timetable, settle)
            answer = settle_answer(plan, found, final) if request.trials else predict_answer(plan)
            steps = _explain(plan, found, answer, measure, progress, timetable)
            return _write_down(plan, found, answer, steps, study.name, timetable, runner)


def _confirm(
    plan: Plan,
    found: SearchOutcome,
    study: Search,
    measure: RunTrial,
    progress: ProgressListener,
    timetable: Timetable,
    settle: Callable[[], None] | None,
) -> Validation:
    """Measure the best of the search again, as far as the search came to its end and time allows.

    `settle` ends what of ours still runs, before others on the machine are looked at; None where trials run elsewhere.
    """
    timetable.spent.begin("confirmation")
    final = Validation(CandidateRuns(plan.baseline))
    if found.interrupted_by is not None or not plan.request.trials or not timetable.allows_finals(1):
        return final
    with capture_interruption() as cut:
        finalists = select_finalists(
            found.records, plan.defaults, found.is_legal, found.expected, found.predict_speedups
        )
        monitor = None if settle is None else InterferenceMonitor(plan.machine.usable_cpus, settle=settle)
        final = confirm(plan, finalists, measure, progress, monitor, timetable.allows_finals, found.expected)
        if final.interrupted_by is None:
            study.finish()
    return replace(final, interrupted_by=final.interrupted_by or cut.cause)


def _explain(
    plan: Plan,
    found: SearchOutcome,
    answer: Answer,
    measure: RunTrial,
    progress: ProgressListener,
    timetable: Timetable,
) -> Ablation:
    """Tell what each setting gave, where there is a confirmed answer to explain; in full where there is time left."""
    timetable.spent.begin("explanation")
    decision, is_confirmed = answer.decision, answer.final.rounds and answer.final.interrupted_by is None
    if not is_confirmed or decision.verdict != "faster" or decision.speedup is None:
        return Ablation()
    match plan.request.explain:
        case "full":
            return ablate(plan, decision, measure, progress, timetable.allows_steps)
        case "brief":
            return estimate_steps(plan, decision, found)
    return Ablation()


@defer_interrupts()
def _write_down(
    plan: Plan,
    found: SearchOutcome,
    answer: Answer,
    steps: Ablation,
    study: str,
    timetable: Timetable,
    runner: TrialRunner,
) -> TuningResult:
    """Save what was found; then raise what had cut the run short, unless it was the user."""
    runner.close()
    interrupted_by, output = (
        found.interrupted_by or answer.final.interrupted_by or steps.interrupted_by,
        Path(plan.request.output),
    )
    doubts, rounds = answer.doubts, answer.final.rounds
    if interrupted_by is None and rounds < ROUNDS and not doubts:
        doubts = (describe_haste(rounds),)
    search = summarize_search(plan, found, study, timetable)
    notes = (*found.findings, *doubts)
    profile = build_profile(plan, found, answer, steps, search, notes, read_profiles_or_empty(output))
    _save(output, profile)
    if isinstance(interrupted_by, TrialError | WorkloadError):
        raise type(interrupted_by)(f"{interrupted_by} The best so far was written to {output}.", interrupted_by.details)
    return TuningResult(profile, plan, found.records, answer.decision.runner_up, interrupted=interrupted_by is not None)


def _save(output: Path, profile: TunedProfile) -> None:
    try:
        save_profile(output, profile)
    except (OutputError, ProfileError) as error:
        raise ResultNotSavedError(str(error), format_profile(profile)) from None
