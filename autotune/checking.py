"""The second story: does a profile still hold on this machine and for this workload?"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from autotune.config import FrozenModel, Interval
from autotune.errors import UsageError
from autotune.preparation import prepare_run
from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.matching import Difference, compare_age, compare_hardware, compare_software, compare_workloads
from autotune.profiles.nodes import NodeReading
from autotune.profiles.saving import change_profile
from autotune.profiles.schema import TunedProfile
from autotune.profiles.selection import describe_local_hardware, nearest_profile
from autotune.profiles.trust import refuse_what_others_may_write
from autotune.progress import ProgressListener
from autotune.request import TuningRequest, check_names
from autotune.runner.runner import TrialRunner, start_runner
from autotune.scripts.importing import check_scripts
from autotune.search.choices import choose_probe_sizes
from autotune.search.warm_start import rebuild_request
from autotune.system.hardware import Hardware, Software
from autotune.system.machine import MachineProfile, read_machine
from autotune.system.versions import read_start_method, read_torch
from autotune.trial.budgets import plan_budgets
from autotune.trial.identity import identify
from autotune.trial.interruption import spawn_error
from autotune.trial.protocol import IdentityReport
from autotune.trial.timetable import Timetable
from autotune.validation.interference import InterferenceMonitor
from autotune.validation.nodes import add_reading
from autotune.validation.remeasurement import Remeasurement, compare_with_prediction
from autotune.validation.rounds import confirm

MIN_KEPT_RATIO: Final = 0.9  # of the predicted throughput, or of the baseline: what surely reaches less is retuned
QUICK_TRIAL_SECONDS: Final = 2.0  # whatever the trials of the tuning took; a quick check takes at least four such


class CheckResult(FrozenModel):
    """What a check found.

    Attributes:
        profile: Name of the profile.
        fits: Whether it may stay in use.
        reasons: Why it should be retuned; empty when it fits.
        advice: What differs without deciding.
        remeasured: What it reaches now, if that was asked for.
        is_recorded: Whether that was added to the profile.
    """

    profile: str
    fits: bool
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    remeasured: Remeasurement | None = None
    is_recorded: bool = False


def check(
    path: str | os.PathLike[str] = "dltune.json",
    *,
    profile: str | None = None,
    max_age_seconds: float | None = None,
    quick: bool = False,
    with_workload: bool = True,
    trust: bool = False,
    record: bool = False,
    progress: ProgressListener | None = None,
) -> CheckResult:
    """Check whether a profile of a tuned file still holds here; nothing is written unless `record` asks for it.

    Args:
        path: The tuned file.
        profile: Name of the profile; None takes the one that fits this machine best.
        max_age_seconds: Age from which a profile is stale, in seconds; None for any.
        quick: Whether to measure it against its baseline again.
        with_workload: Whether to load the dataset and compare its samples.
        trust: Whether to import what the file names although other users may have written it.
        record: Whether to add to the profile what it reaches here, where nothing differs that decides.
        progress: Is told of each measurement.

    Returns:
        Whether it fits, with every reason.

    Raises:
        ProfileError: The file cannot be read, has no such profile, or one without its request; or others may have
            written it, and the workload is to be loaded.
        UsageError: torch is not installed, or the workload is not what it was; or nothing is measured that could be
            recorded.
        WorkloadError: The workload fails.
        TrialError: The machine refuses to run trials.
        OutputError: The file cannot be written.
    """
    file = Path(path)
    if record and not quick:
        raise UsageError("Nothing is measured that could be recorded: give --quick as well.")
    if (quick or with_workload) and not trust:
        refuse_what_others_may_write(file)
    machine = read_machine()
    chosen, _ = nearest_profile(file, profile, machine)
    here = describe_local_hardware(machine, chosen)
    if not quick and not with_workload:
        return compare_profile(chosen, here, software=read_software(chosen), max_age_seconds=max_age_seconds)
    request = rebuild_request(chosen, here, str(file))
    check_names(request.workload)
    check_scripts(request.workload)
    look = _measure_again if quick else _identify
    found = look(request, chosen, machine, max_age_seconds, progress or ProgressListener())
    return _record(file, chosen, found) if record else found


def _record(file: Path, profile: TunedProfile, found: CheckResult) -> CheckResult:
    """Add to a profile what it reaches here, where nothing differs that decides and the machine was quiet."""
    seen = found.remeasured
    if seen is None or not seen.samples_per_second or seen.noise or set(found.reasons) - set(_list_shortfalls(seen)):
        return found
    now = datetime.now(UTC).replace(microsecond=0)
    reading = NodeReading(node=platform.node() or "?", samples_per_second=seen.samples_per_second, created_at=now)

    def change(current: TunedProfile) -> TunedProfile:
        return add_reading(current, reading) if current.created_at == profile.created_at else current

    change_profile(file, profile.name, change)
    return found.model_copy(update={"is_recorded": True})


def _identify(
    request: TuningRequest,
    profile: TunedProfile,
    machine: MachineProfile,
    max_age_seconds: float | None,
    progress: ProgressListener,
) -> CheckResult:
    """Compare a profile with the workload as a few batches show it."""
    with start_runner(request, progress) as runner:
        found = look_at_workload(runner, request, machine)
    return compare_profile(
        profile,
        machine.hardware(found.accelerator),
        software=found.software,
        workload=identify(request.workload, found),
        max_age_seconds=max_age_seconds,
    )


def look_at_workload(runner: TrialRunner, request: TuningRequest, machine: MachineProfile) -> IdentityReport:
    """Load the workload, and tell what it is; without workers, and without a measurement."""
    try:
        return runner.identify(choose_probe_sizes(request)[0], plan_budgets(machine, request))
    except OSError as error:
        raise spawn_error(error) from None


def _measure_again(
    request: TuningRequest,
    profile: TunedProfile,
    machine: MachineProfile,
    max_age_seconds: float | None,
    progress: ProgressListener,
) -> CheckResult:
    """Probe the workload, and measure a profile against its baseline."""
    request = request.model_copy(update={"trial_seconds": QUICK_TRIAL_SECONDS})
    with start_runner(request, progress) as runner:
        plan = prepare_run(request, machine, None, runner, progress, Timetable(request))
        monitor = InterferenceMonitor(plan.machine.usable_cpus)
        final = confirm(plan, [profile.config], runner.run, progress, monitor)
    if final.interrupted_by is not None:
        raise final.interrupted_by
    return compare_profile(
        profile,
        plan.hardware,
        software=plan.workload.software,
        workload=plan.identity,
        max_age_seconds=max_age_seconds,
        remeasured=compare_with_prediction(final, profile),
    )


def compare_profile(
    profile: TunedProfile,
    here: Hardware,
    *,
    software: Software | None = None,
    workload: WorkloadIdentity | None = None,
    max_age_seconds: float | None = None,
    now: datetime | None = None,
    remeasured: Remeasurement | None = None,
) -> CheckResult:
    """Compare a profile with what is at hand; what is None is left out, and `now` is read from the clock."""
    found = [
        *compare_hardware(profile.hardware, here),
        *(compare_software(profile.software, software) if software is not None else ()),
        *(compare_workloads(profile.workload, workload) if workload is not None else ()),
        *compare_age(profile.created_at, now or datetime.now(UTC), max_age_seconds),
    ]
    reasons = (*_describe(found, decides=True), *_list_shortfalls(remeasured))
    return CheckResult(
        profile=profile.name,
        fits=not reasons,
        reasons=reasons,
        advice=_describe(found, decides=False),
        remeasured=remeasured,
    )


def _describe(differences: Iterable[Difference], *, decides: bool) -> tuple[str, ...]:
    return tuple(difference.describe() for difference in differences if difference.requires_retune is decides)


def _list_shortfalls(found: Remeasurement | None) -> tuple[str, ...]:
    """Say why a profile that was measured again does not hold."""
    if found is None:
        return ()
    if found.samples_per_second == 0:
        return ("it does not run any more",)
    if found.speedup is not None and found.speedup_ci95 is not None and found.speedup_ci95[1] < MIN_KEPT_RATIO:
        return (f"it is slower than the baseline: {_describe_ratio(found.speedup, found.speedup_ci95)} times as fast",)
    if found.ratio_to_prediction_ci95 is not None and found.ratio_to_prediction_ci95[1] < MIN_KEPT_RATIO:
        beside = "" if found.machine_change is None else ", after what the baseline itself changed"
        return (
            f"it keeps {_describe_ratio(found.ratio_to_prediction, found.ratio_to_prediction_ci95)} of its predicted throughput{beside}",
        )
    return ()


def _describe_ratio(ratio: float, interval: Interval) -> str:
    return f"{ratio:.2f} [{interval[0]:.2f}-{interval[1]:.2f}]"


def read_software(profile: TunedProfile) -> Software:
    """Read the versions at hand without importing torch; the profile gives what is not compared."""
    torch = read_torch()
    if torch is None:
        raise UsageError("torch is not installed here, so no profile can fit: install it first.")
    here = {
        "torch": torch.version,
        "cuda": torch.cuda,
        "python": platform.python_version(),
        "start_method": read_start_method(),
    }
    return profile.software.model_copy(update=here)
