"""Checks a profile of a tuned file against this machine and, in a child process, against the workload."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from autotune.checking import CheckResult, Remeasurement, check_profile, judge_remeasured, read_software
from autotune.confirm.confirmation import confirm
from autotune.confirm.interference import InterferenceMonitor
from autotune.profiles.schema import TunedProfile
from autotune.profiles.selection import describe_local_hardware, nearest_profile
from autotune.profiles.trust import refuse_what_others_may_write
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.search.warm_start import rebuild_request
from autotune.system.machine import read_machine
from autotune.trial.timetable import Timetable
from autotune.units import format_rate

QUICK_SECONDS: Final = 2.0  # of a trial, of which a quick check takes at least six


def check_file(
    file: Path,
    name: str | None = None,
    most_age_seconds: float | None = None,
    *,
    quick: bool = False,
    with_workload: bool = True,
    trust: bool = False,
    progress: ProgressListener | None = None,
) -> CheckResult:
    """Check a profile of a tuned file.

    Args:
        file: The tuned file.
        name: Name of the profile; None takes the one that fits this machine best.
        most_age_seconds: Age from which a profile is stale, in seconds; None for any.
        quick: Whether to measure it against its baseline again.
        with_workload: Whether to load the dataset and compare its samples.
        trust: Whether to import what the file names although other users may have written it.
        progress: Is told of each measurement.

    Returns:
        Whether it fits, with every reason.

    Raises:
        ProfileError: The file cannot be read, has no such profile, or one without its request; or others may have
            written it, and the workload is to be loaded.
        UsageError: torch is not installed, or the workload is not what it was.
        WorkloadError: The workload fails.
    """
    loads = quick or with_workload
    if loads and not trust:
        refuse_what_others_may_write(file)
    machine = read_machine()
    profile, _ = nearest_profile(file, name, machine)
    here = describe_local_hardware(machine, profile)
    request = rebuild_request(profile, here, str(file)) if loads else None
    plan, found = (
        _look_again(request, profile, progress or ProgressListener(), quick=quick)
        if request is not None
        else (None, None)
    )
    return check_profile(
        profile,
        here if plan is None else plan.hardware,
        software=read_software(profile) if plan is None else plan.workload.software,
        workload=None if plan is None else plan.identity,
        most_age_seconds=most_age_seconds,
        remeasured=found,
    )


def _look_again(
    request: TuningRequest, profile: TunedProfile, progress: ProgressListener, *, quick: bool
) -> tuple[Plan, Remeasurement | None]:
    """Load the workload, and measure the profile again if asked for; nothing is written."""
    # brings Optuna along, which a look at the machine alone does not need
    from autotune.runner.runner import start_runner
    from autotune.tuning import check_names, prepare_run

    check_names(request.workload)
    request = request.model_copy(update={"trial_seconds": QUICK_SECONDS})
    with start_runner(request, progress) as runner:
        plan = prepare_run(request, read_machine(), None, runner, progress, Timetable(request))
        if not quick:
            return plan, None
        monitor = InterferenceMonitor(plan.machine.usable_cpus)
        final = confirm(plan, [profile.config], runner.run, progress, monitor)
        if final.cut_by is not None:
            raise final.cut_by
        return plan, judge_remeasured(final, profile)


def describe_fitness(found: CheckResult, file: str) -> str:
    """Write what a check found for people.

    Args:
        found: What it found.
        file: The tuned file, for the command that is the next step.

    Returns:
        Lines: the verdict, each reason, what differs without deciding.
    """
    verdict = "fits this machine" if found.fits else f"should be tuned anew: dltune retune {file}"
    lines = [f"Profile {found.profile} {verdict}"]
    lines += [f"  {reason}" for reason in found.reasons]
    lines += [f"  differs, without deciding: {advice}" for advice in found.advice]
    if found.remeasured is not None:
        lines.append(f"  {_describe_remeasured(found.remeasured)}")
        lines += [f"  note: {sentence}" for sentence in found.remeasured.noise]
    return "\n".join(lines)


def _describe_remeasured(found: Remeasurement) -> str:
    now, then = format_rate(found.samples_per_second), format_rate(found.promised)
    speedup = f", {found.speedup:.2f} x the baseline" if found.speedup is not None else ""
    machine = f"; the baseline reaches {found.machine_change:.2f} of what it did" if found.machine_change else ""
    return f"measured again: {now} of the {then} promised{speedup}{machine}"
