"""Checks whether a profile is still valid on this machine, for its workload, and when it is measured again."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from autotune.config import FrozenModel, Interval, Rate
from autotune.errors import UsageError
from autotune.preparation import prepare_run, rebuild_request
from autotune.profiles.load import Difference, compare, compare_age, describe_here, select_profile
from autotune.profiles.schema import TunedProfile
from autotune.profiles.store import warn_if_others_can_write
from autotune.progress import ProgressListener
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.messages import RunTrial
from autotune.protocol.workload_profile import WorkloadProfile, identify
from autotune.request import TuningRequest
from autotune.runner.runner import TrialRunner
from autotune.search.plan import Plan
from autotune.search.space import list_requested_sizes
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.software import read_software
from autotune.time_budget import TimeBudget
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.comparison import Comparison
from autotune.validation.noise import NoiseMonitor
from autotune.validation.runs import measure_run, validate

MIN_RATIO: Final = 0.9  # to the prediction, or to the baseline: profiles that are certainly below are retuned
MAX_RATIO: Final = 1.25  # to the prediction: a profile that is certainly above was tuned for something else
MAX_MACHINE_CHANGE: Final = 3.0  # factor of the baseline's throughput; above it, data or step have changed, too
USUAL_HALF_WIDTH: Final = 0.1  # relative half-width of the interval of a throughput that was measured once


class Remeasurement(FrozenModel):
    """A new measurement of a profile, compared with its prediction."""

    samples_per_second: Rate  # in fresh processes, median of the runs
    predicted: Rate  # samples per second in the profile
    speedup: Rate | None = None  # over the baseline in alternating runs; None if the baseline was not measured
    speedup_ci95: Interval | None = None
    ratio_to_prediction: Rate  # of the speedup if the baseline was measured; else of the throughput
    ratio_to_prediction_ci95: Interval | None  # None if nothing was measured
    machine_change: Rate | None = None  # throughput of the baseline over its throughput in the profile
    noise: tuple[str, ...] = ()  # disturbances of the measurement

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the profile is out of date; empty if it is still valid."""
        if self.ratio_to_prediction_ci95 is None:
            return ("it no longer runs",)
        low, high = self.speedup_ci95 or (1.0, 1.0)
        if high < MIN_RATIO:
            return (f"it is slower than the baseline: {self.speedup:.2f}x ({low:.2f}x-{high:.2f}x)",)
        if self.machine_change and not 1 / MAX_MACHINE_CHANGE <= self.machine_change <= MAX_MACHINE_CHANGE:
            return (f"its baseline reaches {self.machine_change:.0%} of its throughput when tuned",)
        low, high = self.ratio_to_prediction_ci95
        if high >= MIN_RATIO and low <= MAX_RATIO:
            return ()
        adjusted = "" if self.machine_change is None else ", adjusted for machine speed"
        reached = f"{self.ratio_to_prediction:.0%} ({low:.0%}-{high:.0%})"
        return (f"it reaches {reached} of its predicted throughput{adjusted}",)


class CheckResult(FrozenModel):
    """Whether a profile is still valid, the `reasons` if it is not, and other differences as `info`."""

    profile: str
    is_valid: bool
    is_from_training: bool = False
    reasons: tuple[str, ...] = ()
    info: tuple[str, ...] = ()
    remeasured: Remeasurement | None = None


def check(
    path: str | os.PathLike[str] = "dltune.json",
    *,
    profile: str | None = None,
    max_age_seconds: float | None = None,
    quick: bool = False,
    with_workload: bool = True,
    progress: ProgressListener | None = None,
) -> CheckResult:
    """Check whether a profile of a tuned file is still valid here. Nothing is written.

    Args:
        path: The tuned file.
        profile: Name of the profile; needed if the file has profiles of several workloads.
        max_age_seconds: Age in seconds from which a profile is out of date; None for any.
        quick: Whether to measure it again.
        with_workload: Whether to load the dataset and compare its samples.
        progress: Receives the events of the measurement.

    Raises:
        UsageError: `quick` without the workload, or an age that is not positive.
        ProfileError: The file is not valid, or has no such profile.
    """
    if quick and not with_workload:
        raise UsageError("A quick check measures the workload: it cannot be combined with --no-workload.")
    if max_age_seconds is not None and not max_age_seconds > 0:
        raise UsageError(f"max_age_seconds={max_age_seconds:g} must be longer than zero.")
    file, progress, machine = Path(path), progress or ProgressListener(), read_machine()
    chosen = select_profile(file, profile, machine)
    age = compare_age(chosen.created_at, datetime.now(UTC), max_age_seconds)
    if not quick and (chosen.is_from_training or not with_workload):
        here, software = describe_here(chosen, machine), read_software()
        if chosen.is_from_training:  # the training may have set it, and this process has not
            here = here.model_copy(update={"nofile_limit": chosen.hardware.nofile_limit})
        is_same_python = software.python.split(".")[:2] == chosen.software.python.split(".")[:2]
        if is_same_python or chosen.is_from_training:  # the user's code may have set it, too
            software = software.model_copy(update={"start_method": chosen.software.start_method})
        return _conclude(chosen, [*compare((chosen.hardware, here), (chosen.software, software)), *age])
    warn_if_others_can_write(file)
    request = rebuild_request(chosen, str(file))
    request.workload.check_import_strings()
    time_budget = TimeBudget(request.model_copy(update={"timeout_seconds": None}))  # of the tuning run
    with TrialRunner(request.workload, request.stall_seconds, progress) as runner:
        if not quick:  # workers need not be profiled
            budgets = plan_budgets(machine, request).model_copy(update={"max_workers": 0})
            workload = runner.probe(list_requested_sizes(request), budgets)
            return _conclude(chosen, [*_compare(chosen, machine, request, workload), *age])
        plan = prepare_run(request, machine, None, runner, time_budget)
        differences = [*_compare(chosen, machine, request, plan.workload), *age]
        if any(one.requires_retune for one in differences):
            return _conclude(chosen, differences)
        if excess := plan.describe_excess(chosen.config):  # it is not started
            return _conclude(chosen, differences, (f"it would exceed a limit: {excess}",))
        monitor = NoiseMonitor(plan.machine.usable_cpus, stop_children=runner.close)
        remeasured = remeasure(plan, chosen, runner.run, progress, monitor, time_budget.allows_runs)
        return _conclude(chosen, differences, remeasured.reasons, remeasured)


def _compare(
    profile: TunedProfile, machine: MachineProfile, request: TuningRequest, workload: WorkloadProfile
) -> list[Difference]:
    here = machine.hardware(workload.accelerator)
    identity = identify(request.workload, workload)
    return compare((profile.hardware, here), (profile.software, workload.software), (profile.workload, identity))


def remeasure(
    plan: Plan,
    profile: TunedProfile,
    run_trial: RunTrial,
    progress: ProgressListener,
    monitor: NoiseMonitor | None = None,
    has_time: Callable[[int], bool] = lambda count: True,
) -> Remeasurement:
    """Measure a profile once, and again in alternation with the baseline if that is not as predicted."""
    first, predicted = CandidateRuns(profile.config), profile.result.samples_per_second_ci95
    measure_run(plan.request, first, run_trial, progress, 1)
    if predicted is not None and predicted[0] <= first.rate <= MAX_RATIO * predicted[1]:
        return _compare_with_prediction(first, None, profile)
    validation = validate(plan, lambda failed: [profile.config], run_trial, progress, monitor, has_time)
    if validation.interrupted_by is not None:
        raise validation.interrupted_by
    again = next((one for one in validation.measured if one.config == profile.config), first)
    baseline = validation.baseline if validation.baseline.config != profile.config else None
    return _compare_with_prediction(again, baseline, profile, validation.noise)


def _compare_with_prediction(
    runs: CandidateRuns, baseline: CandidateRuns | None, profile: TunedProfile, noise: tuple[str, ...] = ()
) -> Remeasurement:
    """Compare new runs of a profile with its prediction; a change of its baseline is a change of the machine."""
    result, then = profile.result, profile.result.baseline
    found: dict[str, Any] = {"samples_per_second": runs.rate, "predicted": result.samples_per_second, "noise": noise}
    if not runs.rate or not result.samples_per_second:
        return Remeasurement(**found, ratio_to_prediction=0.0, ratio_to_prediction_ci95=None)
    now, interval, was, was_interval = runs.rate, runs.ci95(), result.samples_per_second, result.samples_per_second_ci95
    if baseline is not None and baseline.rate:
        speedup, speedup_ci95 = Comparison().report_speedup(runs, baseline)
        found |= {"speedup": speedup, "speedup_ci95": speedup_ci95}
        if then is not None and then.config == baseline.config and then.samples_per_second and result.speedup:
            found["machine_change"] = baseline.rate / then.samples_per_second
            now, interval, was, was_interval = speedup, speedup_ci95, result.speedup, result.speedup_ci95
    known = [one if one is not None and one[0] > 0 else None for one in (interval, was_interval)]
    errors = [USUAL_HALF_WIDTH if one is None else (math.log(one[1]) - math.log(one[0])) / 2 for one in known]
    ratio, factor = now / was, math.exp(math.hypot(*errors))
    return Remeasurement(**found, ratio_to_prediction=ratio, ratio_to_prediction_ci95=(ratio / factor, ratio * factor))


def _conclude(
    profile: TunedProfile,
    differences: Sequence[Difference],
    reasons: tuple[str, ...] = (),
    remeasured: Remeasurement | None = None,
) -> CheckResult:
    retune, info = (tuple(one.text for one in differences if one.requires_retune is kind) for kind in (True, False))
    unfinished = () if profile.is_complete else ("its run was interrupted",)
    reasons = (*unfinished, *retune, *reasons)
    return CheckResult(
        profile=profile.id,
        is_valid=not reasons,
        is_from_training=profile.is_from_training,
        reasons=reasons,
        info=info,
        remeasured=remeasured,
    )
