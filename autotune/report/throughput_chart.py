"""The chart of throughput against workers, as plain numbers and words: the template `charts.html` draws it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

from autotune.config import CONFIDENCE
from autotune.profiles.schema import TunedProfile
from autotune.profiles.search_record import ScalingPoint, SearchEvidence, TrialSummary
from autotune.report.axes import LETTER_WIDTH, PLOT, Scale, make_scale
from autotune.settings import describe_config, differing_settings, find_setting
from autotune.units import format_percent, format_rate

BAND_SIGMAS: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # standard deviations from what is expected to an edge
MAX_CEILING_RATIO: Final = 1.3  # to the fastest; a ceiling above it would flatten everything else
MAX_SIGMA: Final = 5.0  # standard deviation of a logarithm that any chart can show
HEADROOM_RATIO: Final = 1.04  # of an axis to the largest value on it
INSET: Final = 12.0  # between the axis and the first mark
MAX_GAP: Final = 5.0  # between the marks of trials with as many workers

Kind = Literal["alike", "other", "failed", "before", "answer"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark, what a pointer resting on it shows, and both ends of the interval around it."""

    shape: Literal["circle", "square", "diamond", "cross"]
    kind: Kind
    x: float
    y: float
    words: str
    interval: tuple[float, float] | None = None

    @property
    def has_room_right(self) -> bool:
        """Whether its words find room at its right."""
        return self.x + 12 + LETTER_WIDTH * len(self.words) <= PLOT.right


@dataclass(frozen=True, slots=True)
class ThroughputChart:
    """Every trial, the model's curve with its band, the baseline unless it was kept, and the answer."""

    description: str
    across: Scale  # workers
    up: Scale  # samples per second
    ceiling: float | None  # what the step allows, in samples per second
    shows_ceiling: bool  # which is near enough to be drawn
    curve: str  # points; empty where the model expects nothing
    band: str  # outline of what holds 95 % of what it expects
    trials: list[Mark]
    confirmed: list[Mark]

    @property
    def kinds(self) -> set[str]:
        """What kinds of marks there are, for the legend."""
        return {mark.kind for mark in (*self.trials, *self.confirmed)}


def plot_throughput(profile: TunedProfile) -> ThroughputChart | None:
    """Place everything in the chart; None where no trials were recorded."""
    evidence = profile.evidence
    if evidence is None or not evidence.trials:
        return None
    fastest, ceiling = _find_fastest(profile, evidence), profile.result.upper_bound_samples_per_second or 0.0
    shows_ceiling = 0 < ceiling <= MAX_CEILING_RATIO * fastest
    up = make_scale(HEADROOM_RATIO * max(fastest, ceiling if shows_ceiling else 0.0), PLOT.bottom, PLOT.top)
    across = make_scale(max(1, *_list_workers(profile, evidence)), PLOT.left + INSET, PLOT.right - INSET)
    curve, band = _trace_curve(evidence.scaling_curve, across, up)
    return ThroughputChart(
        description=_describe(profile, evidence),
        across=across,
        up=up,
        ceiling=ceiling or None,
        shows_ceiling=shows_ceiling,
        curve=curve,
        band=band,
        trials=[_mark_trial(profile, trial, x, up) for trial, x in _spread(evidence.trials, across)],
        confirmed=_mark_confirmed(profile, across, up),
    )


def _find_fastest(profile: TunedProfile, evidence: SearchEvidence) -> float:
    result, tried = profile.result, (trial.samples_per_second or 0.0 for trial in evidence.trials)
    return max(result.samples_per_second, *(result.samples_per_second_ci95 or ()), *tried)


def _list_workers(profile: TunedProfile, evidence: SearchEvidence) -> list[int]:
    tried = [trial.dataloader.num_workers for trial in evidence.trials]
    return [profile.dataloader.num_workers, *tried, *(point.num_workers for point in evidence.scaling_curve)]


def _describe(profile: TunedProfile, evidence: SearchEvidence) -> str:
    result, measured = profile.result, [trial for trial in evidence.trials if trial.samples_per_second is not None]
    words = [f"{len(measured)} trials from {min(_list_workers(profile, evidence))} workers up"]
    words.append(f"the answer reaches {format_rate(result.samples_per_second)} with {profile.dataloader.num_workers}")
    if result.baseline is not None:
        rate, workers = result.baseline.samples_per_second, result.baseline.dataloader.num_workers
        words.append(f"the baseline {format_rate(rate)} with {workers}")
    if evidence.scaling_curve:
        top = max(evidence.scaling_curve, key=lambda point: point.samples_per_second)
        words.append(f"the model expects most, {format_rate(top.samples_per_second)}, of {top.num_workers}")
    return "; ".join(words) + "."


def _spread(trials: Sequence[TrialSummary], across: Scale) -> Iterator[tuple[TrialSummary, float]]:
    """Give each trial a place of its own, left and right in turn of others with as many workers."""
    gap = min(MAX_GAP, (across.place(1) - across.place(0)) / 5)
    seen: Counter[int] = Counter()
    for trial in trials:
        workers = trial.dataloader.num_workers
        steps = (seen[workers] + 1) // 2 * (-1) ** seen[workers]
        seen[workers] += 1
        yield trial, round(across.place(workers) + gap * steps, 1)


def _mark_trial(profile: TunedProfile, trial: TrialSummary, x: float, up: Scale) -> Mark:
    name = f"Trial {trial.number}, {describe_config(trial.config)}"
    if trial.samples_per_second is None:
        return Mark("cross", "failed", x, PLOT.bottom - 8, f"{name}: {trial.outcome}")
    rate, error = trial.samples_per_second, trial.relative_error or 0.0
    words = f"{name}: {format_rate(rate)}" + (f" ±{format_percent(error)}" if error else "")
    interval = (up.place(rate * (1 - error)), up.place(rate * (1 + error))) if error else None
    kind: Kind = "alike" if differs_only_in_workers(trial, profile) else "other"
    return Mark("circle", kind, x, up.place(rate), words, interval)


def differs_only_in_workers(trial: TrialSummary, profile: TunedProfile) -> bool:
    """Tell whether a trial differs from the answer in the number of workers only."""
    both_have_workers = bool(trial.dataloader.num_workers and profile.dataloader.num_workers)
    others = [name for name in differing_settings(trial.config, profile.config) if name != "num_workers"]
    return not any(both_have_workers or find_setting(name).needs is None for name in others)


def _trace_curve(curve: Sequence[ScalingPoint], across: Scale, up: Scale) -> tuple[str, str]:
    """Trace what the model expects, and the band that holds 95 % of it."""
    if len(curve) < 2:
        return "", ""
    low, line, high = (
        [f"{across.place(point.num_workers)},{up.place(_shift(point, side))}" for point in curve] for side in (-1, 0, 1)
    )
    return " ".join(line), " ".join([*high, *reversed(low)])


def _shift(point: ScalingPoint, side: int) -> float:
    return point.samples_per_second * math.exp(side * BAND_SIGMAS * min(point.relative_error, MAX_SIGMA))


def _mark_confirmed(profile: TunedProfile, across: Scale, up: Scale) -> list[Mark]:
    result, base, marks = profile.result, profile.result.baseline, []
    if base is not None and result.verdict == "faster":
        x, y = across.place(base.dataloader.num_workers), up.place(base.samples_per_second)
        marks.append(Mark("square", "before", x, y, f"before {format_rate(base.samples_per_second)}"))
    bounds = result.samples_per_second_ci95
    words = f"{'kept' if result.verdict == 'keep' else 'answer'} {format_rate(result.samples_per_second)}"
    x, y = across.place(profile.dataloader.num_workers), up.place(result.samples_per_second)
    interval = None if bounds is None else (up.place(bounds[0]), up.place(bounds[1]))
    return [*marks, Mark("diamond", "answer", x, y, words, interval)]
