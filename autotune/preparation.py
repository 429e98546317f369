"""Steps before the first trial: check the request, profile the workload, plan limits and search space."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from autotune.errors import ProfileError
from autotune.profiles.load import describe_here
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import check_writable, read_profiles
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest, explain_invalid
from autotune.runner.runner import TrialRunner
from autotune.search.plan import Plan, make_plan
from autotune.search.space import list_requested_sizes
from autotune.system.machine import MachineProfile
from autotune.time_budget import TimeBudget
from autotune.units import format_seconds

MAX_START_SECONDS: Final = 10.0  # of a process, with its dataset and step, before the user is warned


def check_request(request: TuningRequest) -> None:
    """Raise the error of a request that cannot succeed, before any process is started."""
    from autotune.search.study import check_study  # `dltune check` imports this module, and never Optuna

    request.workload.check_import_strings()
    check_writable(Path(request.output))
    check_study(request)


def find_stored(request: TuningRequest, machine: MachineProfile, *, validated: bool) -> TunedProfile | None:
    """Find the profile of an earlier run of the same request on this class of machine, complete or interrupted."""
    ignored = {"timeout_seconds": None}  # it does not change the result
    for profile in () if request.fresh else read_profiles(Path(request.output)):
        is_here = profile.hardware.is_like(describe_here(profile, machine))
        if is_here and profile.request | ignored == request.record() | ignored and profile.is_validated is validated:
            return profile
    return None


def find_earlier(plan: Plan) -> TunedProfile | None:
    """Find the profile that the search begins with: a validated one of this request, or one of a training run.

    The training run had as many samples, on this class of machine.
    """
    if (stored := find_stored(plan.request, plan.machine, validated=True)) is not None:
        return stored
    for one in () if plan.request.fresh else read_profiles(Path(plan.request.output)):
        is_like_this = one.workload.samples == plan.workload.samples and one.hardware.is_like(plan.hardware)
        if one.is_from_training and is_like_this:
            return one
    return None


def rebuild_request(profile: TunedProfile, output: str) -> TuningRequest:
    """Return the request that a profile was tuned with, for another run in the current folder."""
    if profile.is_from_training:
        raise ProfileError(
            f"Profile {profile.id} was measured in a training run. Train again with dltune run or autotune.autopilot."
        )
    try:
        return TuningRequest.model_validate(profile.request | {"output": output})
    except ValidationError as error:
        path, reason = explain_invalid(error)
        problem = f"its request is invalid ({'.'.join(path)}: {reason})"
        raise ProfileError(f"Profile {profile.id}: {problem}. Tune again with dltune.") from None


def prepare_run(
    request: TuningRequest,
    machine: MachineProfile,
    workload: WorkloadProfile | None,
    runner: TrialRunner,
    time_budget: TimeBudget,
) -> Plan:
    """Profile the workload unless its profile is given, and plan limits and search space."""
    budgets = plan_budgets(machine, request)
    if workload is None:
        sizes = list_requested_sizes(request)
        workload = runner.probe(sizes, budgets, machine.usable_cpus, time_budget.left_seconds)
    budgets = plan_budgets(machine, request, workload)
    runner.limit(budgets, workload)
    plan = make_plan(request, machine, workload, budgets)
    if runner.start_seconds is not None:
        time_budget.start_seconds = runner.start_seconds
        if runner.start_seconds > MAX_START_SECONDS:
            runner.progress.show_warning(describe_slow_start(request.workload, runner.start_seconds))
    runner.progress.show_plan(plan)
    time_budget.begin_search()
    return plan


def describe_slow_start(workload: WorkloadRequest, seconds: float) -> str:
    """Describe that the processes of trials start slowly, with the next step."""
    module, _, name = workload.dataset.partition(":")
    return (
        f"Each process of a trial takes {format_seconds(seconds)} to import {module}, call {name} and make the step. "
        f'To tune faster, put what it does not need, such as the training, under if __name__ == "__main__".'
    )
