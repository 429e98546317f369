"""A request that was answered already: is there an answer in the file, and does it still stand?"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any, Final

from autotune.checking import CheckResult, compare_profile, look_at_workload
from autotune.profiles.file import read_profiles_or_empty
from autotune.profiles.matching import compare_hardware
from autotune.profiles.schema import TunedProfile
from autotune.profiles.selection import describe_local_hardware
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.runner.runner import start_runner
from autotune.system.machine import read_machine
from autotune.trial.identity import identify
from autotune.validation.remeasurement import Remeasurement, compare_with_prediction
from autotune.validation.rounds import Validation, measure_run
from autotune.validation.runs import CandidateRuns

VERIFYING_ROUNDS: Final = 2
MAX_KEPT_RATIO: Final = 1.25  # of the predicted throughput: what surely reaches more is not what was tuned
OF_THE_RUN: Final = {"output", "storage", "study_name", "resume", "timeout_seconds", "explain", "isolation"}


def find_answer(request: TuningRequest) -> TunedProfile | None:
    """Find what an earlier run answered to the same request on a machine like this; None without a confirmed one.

    A request for a prediction is answered by what was measured with any number of trials.
    """
    machine = read_machine()
    left_out = OF_THE_RUN if request.trials else OF_THE_RUN | {"trials"}
    asked = _leave_out(request.record(), left_out)
    for profile in reversed(read_profiles_or_empty(Path(request.output))):
        here = describe_local_hardware(machine, profile)
        is_same = profile.request is not None and _leave_out(profile.request, left_out) == asked
        if is_same and profile.result.validation_runs and not compare_hardware(profile.hardware, here):
            return profile
    return None


def _leave_out(request: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in names}


def verify(request: TuningRequest, profile: TunedProfile, progress: ProgressListener) -> CheckResult:
    """Check by a measurement or two that the answer of an earlier run still holds.

    One round that reaches what was promised, within its interval, is enough; else another one is looked at. What is
    much faster does not hold either: other data, or a machine that was busy then, may want other settings.

    Raises:
        UsageError: The workload is not what it was.
        WorkloadError: The workload fails.
        TrialError: The machine refuses to run trials.
    """
    machine, runs = read_machine(), CandidateRuns(profile.config)
    with start_runner(request, progress) as runner:
        found = look_at_workload(runner, request, machine)
        for number in range(1, VERIFYING_ROUNDS + 1):
            measure_run(request, runs, runner.run, progress, number)
            if _keeps_promise(runs, profile):
                break
    baseline = CandidateRuns(profile.config if profile.result.baseline is None else profile.result.baseline.config)
    remeasured = compare_with_prediction(Validation(baseline, entrants=(runs,)), profile)
    checked = compare_profile(
        profile,
        machine.hardware(found.accelerator),
        software=found.software,
        workload=identify(request.workload, found),
        remeasured=remeasured,
    )
    reasons = (*checked.reasons, *list_surplus(remeasured))
    return checked.model_copy(update={"fits": not reasons, "reasons": reasons})


def _keeps_promise(runs: CandidateRuns, profile: TunedProfile) -> bool:
    promised = profile.predicted_ci95
    return promised is not None and promised[0] <= runs.rate <= MAX_KEPT_RATIO * promised[1]


def list_surplus(found: Remeasurement) -> tuple[str, ...]:
    """Say that a profile reaches much more than it states, where that is sure."""
    if found.ratio_to_prediction_ci95 is None or found.ratio_to_prediction_ci95[0] <= MAX_KEPT_RATIO:
        return ()
    low, high = found.ratio_to_prediction_ci95
    return (f"it reaches {found.ratio_to_prediction:.2f} [{low:.2f}-{high:.2f}] of its predicted throughput",)
