"""The main flow of one run: profile, plan, search, validate, decide, save."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autotune.errors import DltuneError, OutputError, ProfileError, ResultNotSavedError, UsageError
from autotune.preparation import check_request, find_earlier, find_import_string, find_stored, prepare_run
from autotune.profiles.schema import TunedFile, TunedProfile
from autotune.profiles.store import format_file, save_profile
from autotune.progress import ProgressListener
from autotune.protocol.messages import RunTrial
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest, explain_invalid
from autotune.runner.runner import TrialRunner
from autotune.runner.supervisor_client import SupervisorClient, check_not_in_trial
from autotune.search.loop import Search, SearchOutcome
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord
from autotune.settings import SETTINGS, format_arguments
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.signals import defer_interrupts
from autotune.time_budget import TimeBudget
from autotune.units import format_rate
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.decision import select_candidates
from autotune.validation.noise import NoiseMonitor
from autotune.validation.result import build_profile
from autotune.validation.runs import Validation, validate

if TYPE_CHECKING:
    from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True, repr=False)
class TuningResult:
    """The saved profile, the plan and all trials of a run; `profile` holds the best so far if it was interrupted."""

    profile: TunedProfile
    plan: Plan
    records: tuple[TrialRecord, ...]
    interrupted: bool = False

    def __repr__(self) -> str:
        found = f"{format_arguments(self.profile.config)}; {format_rate(self.profile.result.samples_per_second)}/s"
        return f"TuningResult({found}, {len(self.records)} trials{', interrupted' * self.interrupted})"


class WarningListener(ProgressListener):
    """Keeps the warnings of a run until its end: one that is an error must not lose the result."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def show_warning(self, sentence: str) -> None:
        """Keep a warning."""
        self.warnings.append(sentence)


def tune(
    request: TuningRequest | Iterable[Any] | Dataset[Any] | Callable[..., Any],
    *,
    run_trial: RunTrial | None = None,
    machine: MachineProfile | None = None,
    workload: WorkloadProfile | None = None,
    progress: ProgressListener | None = None,
    earlier: TunedProfile | None = None,
    time_budget: TimeBudget | None = None,
    supervisor: SupervisorClient | None = None,
    **options: Any,
) -> TuningResult:
    """Find the fastest DataLoader configuration for a workload on this machine, and save it.

    Unless the request is `fresh`, earlier runs of the same request in the tuned file help: the trials of an unfinished
    one count, and the best configurations of a validated one are tried first.

    Args:
        request: The tuning request; or a loader, a dataset or a function that returns one, which child processes import
            again by its name in its module.
        run_trial: Measures one configuration; None runs trials in child processes.
        machine: The machine; None reads it.
        workload: Profile of the workload; None measures it in a child process.
        progress: Receives the events of the run; None shows only warnings, as Python does.
        earlier: A validated profile, whose best configurations are tried first; None looks for one in the tuned file.
        time_budget: Divides the time that the request allows; None starts with this call.
        supervisor: Starts the processes of trials; None makes one.
        options: Fields of `TuningRequest` and `WorkloadRequest`, if `request` is an object.

    Raises:
        DltuneError: The subclass says what failed. If trials ran, the best so far has been saved, or is in the error.
        KeyboardInterrupt: Interrupted before any configuration was measured.
    """
    check_not_in_trial()
    request = request_from_object(request, options)
    time_budget, progress = time_budget or TimeBudget(request), progress or WarningListener()
    check_request(request)
    with TrialRunner(request.workload, request.stall_seconds, progress, supervisor) as runner:
        plan = prepare_run(request, machine or read_machine(), workload, runner, time_budget)
        measure = time_budget.timed(run_trial or runner.run)
        unfinished = find_stored(request, plan.machine, validated=False)
        earlier = earlier or find_earlier(plan)
        found = Search(plan, measure, progress, time_budget.allows_trial, earlier, unfinished).run()
        time_budget.begin_phase("validation")
        validation = Validation(CandidateRuns(plan.baseline))
        if found.interrupted_by is None and time_budget.allows_runs(1):
            monitor = NoiseMonitor(plan.machine.usable_cpus, stop_children=runner.close) if run_trial is None else None
            choose = partial(select_candidates, plan, found.records, found.model)
            surrogate = found.model.surrogate
            validation = validate(plan, choose, measure, progress, monitor, time_budget.allows_runs, surrogate)
        result = _save(plan, found, validation, time_budget, runner)
    if isinstance(progress, WarningListener):
        said = [one for one in result.profile.result.warnings if one != plan.workload.loader_note]
        said += ["Interrupted: the result is the best so far."] if result.interrupted else []
        for sentence in dict.fromkeys([*progress.warnings, *said]):
            warnings.warn(sentence, stacklevel=2)
    return result


def request_from_object(value: object, options: dict[str, Any]) -> TuningRequest:
    """Build the request for an object with options of `tune`; a request is returned unchanged."""
    if isinstance(value, TuningRequest):
        if options:
            raise UsageError(f"{', '.join(options)}: set these options in the TuningRequest.")
        return value
    if given := options.keys() & {"workload", "dataset"}:
        raise UsageError(f"tune(..., {min(given)}=...): pass the function, dataset or loader as the first argument.")
    named = {name: find_import_string(one, f"{name}=") if callable(one) else one for name, one in options.items()}
    workload = {name: named.pop(name) for name in options if name in WorkloadRequest.model_fields}
    try:
        return TuningRequest(workload=WorkloadRequest(dataset=find_import_string(value), **workload), **named)
    except ValidationError as error:
        path, reason = explain_invalid(error)
        if error.errors()[0]["type"] == "extra_forbidden":
            hints = {name: name for name in (*TuningRequest.model_fields, *WorkloadRequest.model_fields)}
            hints |= {name: f"fixed={{{name!r}: VALUE}}" for name in SETTINGS}
            hints |= {f"{one}_time": f"{one}_seconds" for one in ("step", "trial", "stall")}  # options of the command
            similar = difflib.get_close_matches(path[-1], hints.keys() - {"workload", "dataset"}, n=1)
            hint = hints[similar[0]] if similar else ""
            reason = f"there is no such option{hint and f' (is it {hint}?)'}"
        option = f"..., {'.'.join(path)}=" if path else ""  # of several options, there is no path
        raise UsageError(f"tune({option}...): {reason}.") from None


@defer_interrupts()
def _save(
    plan: Plan, found: SearchOutcome, validation: Validation, time_budget: TimeBudget, runner: TrialRunner
) -> TuningResult:
    """Decide and save the profile; then raise the error that ended the run early, unless it was Ctrl-C."""
    runner.close()
    phase_seconds, seconds = time_budget.phase_seconds, time_budget.passed_seconds
    profile = build_profile(plan, found, validation, phase_seconds=phase_seconds, seconds=seconds)
    interrupted_by, output = found.interrupted_by or validation.interrupted_by, Path(plan.request.output)
    try:
        save_profile(output, profile)
    except (OutputError, ProfileError) as error:
        raise ResultNotSavedError(str(error), format_file(TunedFile(profiles=(profile,)))) from None
    if isinstance(interrupted_by, DltuneError):
        message = f"{interrupted_by} The best result so far was saved to {output}."
        raise type(interrupted_by)(message, interrupted_by.details)
    return TuningResult(profile, plan, found.records, interrupted=interrupted_by is not None)
