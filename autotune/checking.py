"""Tells whether a profile still fits the machine and the workload at hand, and measures it again when asked."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from autotune.config import FrozenModel, Interval, Rate
from autotune.confirm.confirmation import Confirmation, ConfirmationRuns
from autotune.errors import UsageError
from autotune.profiles.compare import measure_width
from autotune.profiles.matching import Difference, compare_age, compare_hardware, compare_software, compare_workloads
from autotune.profiles.schema import Baseline, TunedProfile, WorkloadIdentity
from autotune.system.hardware import Hardware, Software
from autotune.system.versions import read_start_method, read_torch

MIN_PROMISE_RATIO: Final = (
    0.9  # of what was promised, or of the baseline; a profile that surely reaches less is tuned anew
)


class Remeasurement(FrozenModel):
    """What a profile reaches now.

    Attributes:
        samples_per_second: Its throughput in fresh processes, median of the rounds.
        promised: What the profile says.
        speedup: Over the baseline, in rounds of the same minutes; None when the baseline could not run.
        speedup_ci95: Its 95 % interval.
        kept: Share of the promise that it keeps, where the machine itself changed as the baseline did; of the plain
            promise where the baseline of that time was not measured.
        kept_ci95: Its 95 % interval, from the intervals of then and of now; None where it was measured once only.
        machine_change: Throughput of the baseline over what it was then; None where it was not measured twice.
        noise: Sentences on what disturbed the measurement; empty when the machine was quiet.
    """

    samples_per_second: Rate
    promised: Rate
    speedup: Rate | None
    speedup_ci95: Interval | None
    kept: Rate
    kept_ci95: Interval | None
    machine_change: Rate | None = None
    noise: tuple[str, ...] = ()


class CheckResult(FrozenModel):
    """What a check found.

    Attributes:
        profile: Name of the profile.
        fits: Whether it may stay in use.
        reasons: Why it should be tuned anew; empty when it fits.
        advice: What differs without deciding.
        remeasured: What it reaches now, if that was asked for.
    """

    profile: str
    fits: bool
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    remeasured: Remeasurement | None = None


def check_profile(
    profile: TunedProfile,
    here: Hardware,
    *,
    software: Software | None = None,
    workload: WorkloadIdentity | None = None,
    most_age_seconds: float | None = None,
    now: datetime | None = None,
    remeasured: Remeasurement | None = None,
) -> CheckResult:
    """Compare a profile with what is at hand.

    Args:
        profile: The profile.
        here: This machine.
        software: Versions at hand; None leaves them out.
        workload: The workload at hand; None leaves it out.
        most_age_seconds: Age from which a profile is stale, in seconds; None for any.
        now: The moment of asking; None reads the clock.
        remeasured: What the profile reaches now; None leaves it out.

    Returns:
        Whether it fits, with every reason.
    """
    found = [
        *compare_hardware(profile.hardware, here),
        *(compare_software(profile.software, software) if software is not None else ()),
        *(compare_workloads(profile.workload, workload) if workload is not None else ()),
        *compare_age(profile.created_at, now or datetime.now(UTC), most_age_seconds),
    ]
    reasons = (*_describe(found, decides=True), *_judge(remeasured))
    return CheckResult(
        profile=profile.name,
        fits=not reasons,
        reasons=reasons,
        advice=_describe(found, decides=False),
        remeasured=remeasured,
    )


def _describe(differences: Iterable[Difference], *, decides: bool) -> tuple[str, ...]:
    return tuple(difference.describe() for difference in differences if difference.decides is decides)


def _judge(found: Remeasurement | None) -> tuple[str, ...]:
    """Say why a profile that was measured again does not hold."""
    if found is None:
        return ()
    if found.samples_per_second == 0:
        return ("it does not run any more",)
    if found.speedup is not None and found.speedup_ci95 is not None and found.speedup_ci95[1] < MIN_PROMISE_RATIO:
        return (f"it is slower than the baseline: {_describe_share(found.speedup, found.speedup_ci95)} times as fast",)
    if found.kept_ci95 is not None and found.kept_ci95[1] < MIN_PROMISE_RATIO:
        beside = "" if found.machine_change is None else ", after what the baseline itself changed"
        return (f"it keeps {_describe_share(found.kept, found.kept_ci95)} of what it promises{beside}",)
    return ()


def _describe_share(share: float, interval: Interval) -> str:
    return f"{share:.2f} [{interval[0]:.2f}-{interval[1]:.2f}]"


def judge_remeasured(final: Confirmation, profile: TunedProfile) -> Remeasurement:
    """Say what a profile reaches now.

    Args:
        final: Rounds of the profile's configuration and its baseline.
        profile: The profile.

    Returns:
        What it reaches, against what it promised.
    """
    baseline = final.baseline
    ours = next(entrant for entrant in final.entrants if entrant.config == profile.config)
    comparable = ours is not baseline and ours.rate > 0 and baseline.rate > 0
    ratio, interval = ours.compare(baseline) if comparable else (None, None)
    change = _measure_change(baseline, profile.result.baseline)
    kept, kept_interval = _compare_with_promise(ours, profile, change, ratio, interval)
    return Remeasurement(
        samples_per_second=ours.rate,
        promised=profile.result.samples_per_second,
        speedup=ratio,
        speedup_ci95=interval,
        kept=kept,
        kept_ci95=kept_interval,
        machine_change=change,
        noise=final.noise,
    )


def _measure_change(now: ConfirmationRuns, then: Baseline | None) -> float | None:
    """Give the baseline's throughput over what it was; None where it is another one, or was not measured twice."""
    if then is None or not then.samples_per_second or not now.rate:
        return None
    is_same = then.config == now.config
    return now.rate / then.samples_per_second if is_same else None


def _compare_with_promise(
    ours: ConfirmationRuns,
    profile: TunedProfile,
    change: float | None,
    speedup: float | None,
    interval: Interval | None,
) -> tuple[float, Interval | None]:
    """Give the share of the promise that is kept, and its interval; less what the baseline itself changed."""
    was = profile.result
    if not ours.rate or not was.samples_per_second:
        return 0.0, None
    if change is not None and speedup is not None and was.speedup:
        return _divide(speedup, interval, was.speedup, was.speedup_ci95)
    now = ours.rate / (change or 1.0)
    return _divide(now, ours.bound(), was.samples_per_second, was.samples_per_second_ci95)


def _divide(
    now: float, now_interval: Interval | None, then: float, then_interval: Interval | None
) -> tuple[float, Interval | None]:
    """Divide what is by what was, with the 95 % interval from the widths of both."""
    ratio = now / then
    if now_interval is None:
        return ratio, None
    factor = math.exp(math.hypot(measure_width(now_interval), measure_width(then_interval)))
    return ratio, (ratio / factor, ratio * factor)


def read_software(profile: TunedProfile) -> Software:
    """Read the versions at hand without importing torch.

    Args:
        profile: Gives what is not compared.

    Returns:
        Versions, and how this Python starts workers when nobody says otherwise.

    Raises:
        UsageError: torch is not installed.
    """
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
