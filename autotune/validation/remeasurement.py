"""What a profile reaches when it is measured again, against the throughput that it states."""

from __future__ import annotations

import math

from autotune.config import FrozenModel, Interval, Rate
from autotune.profiles.compare import log_half_width
from autotune.profiles.schema import Baseline, TunedProfile
from autotune.validation.rounds import Validation
from autotune.validation.runs import CandidateRuns


class Remeasurement(FrozenModel):
    """What a profile reaches now.

    Attributes:
        samples_per_second: Its throughput in fresh processes, median of the rounds.
        predicted: The throughput that the profile states.
        speedup: Over the baseline, in rounds of the same minutes; None when the baseline could not run.
        speedup_ci95: Its 95 % interval.
        ratio_to_prediction: Share of the predicted speedup that it keeps, where the baseline of that time was measured again; else of
            the predicted throughput.
        ratio_to_prediction_ci95: Its 95 % interval, from the intervals of then and of now; None after a single run.
        machine_change: Throughput of the baseline over what it was then; None where it was not measured twice.
        noise: Sentences on what disturbed the measurement; empty when the machine was quiet.
    """

    samples_per_second: Rate
    predicted: Rate
    speedup: Rate | None
    speedup_ci95: Interval | None
    ratio_to_prediction: Rate
    ratio_to_prediction_ci95: Interval | None
    machine_change: Rate | None = None
    noise: tuple[str, ...] = ()


def compare_with_prediction(final: Validation, profile: TunedProfile) -> Remeasurement:
    """Say what a profile reaches in these rounds of its configuration and its baseline, against what it states."""
    baseline = final.baseline
    ours = next(entrant for entrant in final.entrants if entrant.config == profile.config)
    comparable = ours is not baseline and ours.rate > 0 and baseline.rate > 0
    speedup, interval = ours.compare(baseline) if comparable else (None, None)
    change = _measure_change(baseline, profile.result.baseline)
    kept, kept_interval = _measure_kept(ours, profile, change, speedup, interval)
    return Remeasurement(
        samples_per_second=ours.rate,
        predicted=profile.result.samples_per_second,
        speedup=speedup,
        speedup_ci95=interval,
        ratio_to_prediction=kept,
        ratio_to_prediction_ci95=kept_interval,
        machine_change=change,
        noise=final.noise,
    )


def _measure_change(now: CandidateRuns, then: Baseline | None) -> float | None:
    """Give the baseline's throughput over what it was; None where it is another one, or was not measured twice."""
    if then is None or then.config != now.config or not then.samples_per_second or not now.rate:
        return None
    return now.rate / then.samples_per_second


def _measure_kept(
    ours: CandidateRuns,
    profile: TunedProfile,
    change: float | None,
    speedup: float | None,
    interval: Interval | None,
) -> tuple[float, Interval | None]:
    """Give the share of the prediction that is kept, and its interval; less what the baseline itself changed."""
    was = profile.result
    if not ours.rate or not was.samples_per_second:
        return 0.0, None
    if change is not None and speedup is not None and was.speedup:
        return _divide(speedup, interval, was.speedup, was.speedup_ci95)
    now = ours.rate / (change or 1.0)
    return _divide(now, ours.ci95(), was.samples_per_second, profile.predicted_ci95)


def _divide(
    now: float, now_interval: Interval | None, then: float, then_interval: Interval | None
) -> tuple[float, Interval | None]:
    """Divide what is by what was, with the 95 % interval from the widths of both."""
    ratio = now / then
    if now_interval is None:
        return ratio, None
    factor = math.exp(math.hypot(log_half_width(now_interval), log_half_width(then_interval)))
    return ratio, (ratio / factor, ratio * factor)
