"""Steps before the first trial: name and check what is to be tuned, profile it, plan limits and search space."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import MethodType, ModuleType
from typing import Final

from pydantic import ValidationError

from autotune.errors import ProfileError, UsageError
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
from autotune.system.software import is_library
from autotune.time_budget import TimeBudget
from autotune.units import format_seconds

MAX_START_SECONDS: Final = 10.0  # of a process, with its dataset and step, before the user is warned


def find_import_string(value: object, option: str = "") -> str:
    """Return the import string of an object, the value of an option or the one to tune; raise UsageError if none."""
    qualified = getattr(value, "__qualname__", None) if callable(value) else None
    home, found = sys.modules.get(getattr(value, "__module__", None) or ""), list[tuple[ModuleType, str]]()
    if qualified is not None and home is not None:
        with suppress(AttributeError):  # a lambda, or a function in another one
            named = attrgetter(qualified)(home)
            is_alike = hasattr(named, "__wrapped__") == hasattr(value, "__wrapped__")  # else one wraps the other
            is_reloaded = type(named) is type(value) is not MethodType and is_alike
            found = [(home, qualified)] if named == value or is_reloaded else []
    elif value is None or isinstance(value, int | float | str | bytes):  # which many modules have by chance
        hint = " Give an import string in a TuningRequest." if isinstance(value, str) and ":" in value else ""
        raise UsageError(f"tune() needs a function, a dataset or a loader; it got {value!r}.{hint}")
    if not found:
        modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
        held = ((module, name) for module in modules for name, one in list(vars(module).items()) if one is value)
        found = sorted((one for one in held if one[1] != "_"), key=lambda one: one[0].__name__ == "__main__")
    if not found:
        name = "make_step" if option == "step=" else "make_loader"
        subject, call = (f"{option}: this", f"..., {option}{name}") if option else ("This", name)
        raise UsageError(
            f"{subject} {type(value).__name__} is not a module-level name, so a trial cannot import it. Define a "
            f"function at module level with def {name}(): ..., and pass that: tune({call})."
        )
    module, name = found[0]
    file: str = getattr(module, "__file__", None) or ""
    if module.__name__ != "__main__":
        is_source = file.endswith(".py") and Path(file).is_file()  # not in a zip file
        if is_source and "." not in module.__name__ and _is_added_path(Path(file).resolve().parent):
            return f"{os.path.relpath(file)}:{name}"
        return f"{module.__name__}:{name}"
    if not Path(file).is_file():
        raise UsageError(
            f"{name} exists only in this notebook or interpreter, and trials import it by name. Write the code that "
            "makes it to a file (in a notebook, by a cell that begins with %%writefile loaders.py), and import it from "
            "there: from loaders import train_loader"
        )
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:  # python -m
        return f"{spec.name}:{name}"
    return f"{os.path.relpath(file)}:{name}"


def _is_added_path(folder: Path) -> bool:
    """Return whether only this process imports from a folder: that of the script, or one added to `sys.path`."""
    common = [".", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    here, everywhere = ({Path(one).resolve() for one in paths if isinstance(one, str)} for paths in (sys.path, common))
    return folder in here - everywhere and not is_library(f"{folder}{os.sep}")


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
    step = "" if workload.step is None else " and make the step"
    return (
        f"Each process of a trial takes {format_seconds(seconds)} to import {module} and call {name}{step}. "
        f'To tune faster, put what it does not need, such as the training, under if __name__ == "__main__".'
    )
