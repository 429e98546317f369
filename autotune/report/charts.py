"""Draws where the trials lie: throughput against workers, memory against throughput."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from autotune.knobs import KNOBS, describe_config, list_differences
from autotune.profiles.schema import ScalingPoint, SearchEvidence, TrialSummary, TunedProfile
from autotune.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Scale,
    draw,
    draw_axes,
    draw_interval,
    draw_label,
    draw_mark,
    make_doubling_scale,
    make_scale,
    start_chart,
    write,
)
from autotune.units import format_bytes, format_percent, format_rate

IN_95: Final = 1.96  # standard deviations to each side that hold 95 % of what is expected
CEILING_SHOWN: Final = 1.3  # times the fastest; a ceiling above it would flatten everything else
WIDEST: Final = 5.0  # standard deviation of a logarithm that any chart can show
HEADROOM: Final = 1.04  # of an axis above the largest value on it
INSET: Final = 12.0  # between the axis and the first mark
APART: Final = 5.0  # between the marks of trials with as many workers, at most


def draw_throughput(profile: TunedProfile, evidence: SearchEvidence) -> str:
    """Draw throughput against the number of workers: every trial, the model's curve, the baseline and the answer.

    Args:
        profile: The profile.
        evidence: Its evidence.

    Returns:
        The drawing.
    """
    fastest = find_fastest(profile, evidence)
    ceiling = profile.result.ceiling_samples_per_second
    shown = ceiling if ceiling is not None and ceiling <= CEILING_SHOWN * fastest else None
    up = make_scale(HEADROOM * max(fastest, shown or 0.0), BOTTOM, TOP)
    across = make_scale(max(1, *_list_workers(profile, evidence)), LEFT + INSET, RIGHT - INSET)
    chart = start_chart("throughput", "Throughput against workers", describe_throughput(profile, evidence))
    labels = [f"{tick:g}" for tick in across.ticks], [f"{tick:,g}" for tick in up.ticks]
    draw_axes(chart, across, up, labels, ("worker processes", "samples per second"))
    if shown is not None:
        _draw_limit(chart, up.place(shown), "what the step allows", "ceiling")
    _draw_curve(chart, evidence.scaling_curve, across, up)
    for trial, x in _spread(evidence.trials, across):
        _draw_trial(chart, trial, x, up, "alike" if is_alike(trial, profile) else "other")
    _draw_both(chart, profile, across, up)
    return write(chart)


def find_fastest(profile: TunedProfile, evidence: SearchEvidence) -> float:
    """Find the largest throughput among trials, answer and its interval, in samples per second."""
    result = profile.result
    rates: list[float] = [result.samples_per_second, *(result.samples_per_second_ci95 or ())]
    rates += [trial.samples_per_second for trial in evidence.trials if trial.samples_per_second is not None]
    return max(rates)


def _list_workers(profile: TunedProfile, evidence: SearchEvidence) -> list[int]:
    tried = [trial.dataloader.num_workers for trial in evidence.trials]
    return [profile.dataloader.num_workers, *tried, *(point.num_workers for point in evidence.scaling_curve)]


def describe_throughput(profile: TunedProfile, evidence: SearchEvidence) -> str:
    """Say what the chart of throughput shows."""
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


def is_alike(trial: TrialSummary, profile: TunedProfile) -> bool:
    """Tell whether a trial differs from the answer in the number of workers only."""
    with_workers = bool(trial.dataloader.num_workers and profile.dataloader.num_workers)
    differing = list_differences(trial.config, profile.config)
    return not any(with_workers or KNOBS[name].needs is None for name in differing if name != "num_workers")


def _spread(trials: Sequence[TrialSummary], across: Scale) -> Iterator[tuple[TrialSummary, float]]:
    """Give each trial a place of its own, left and right in turn of others with as many workers."""
    apart = min(APART, (across.place(1) - across.place(0)) / 5)
    seen: Counter[int] = Counter()
    for trial in trials:
        workers = trial.dataloader.num_workers
        steps = (seen[workers] + 1) // 2 * (-1) ** seen[workers]
        seen[workers] += 1
        yield trial, across.place(workers) + apart * steps


def _draw_trial(chart: Element, trial: TrialSummary, x: float, up: Scale, kind: str) -> None:
    if trial.samples_per_second is None:
        draw_mark(chart, "cross", x, BOTTOM - 8, "failed", f"{_name(trial)}: {trial.outcome}")
        return
    rate, error = trial.samples_per_second, trial.relative_error or 0.0
    if error:
        draw_interval(chart, x, up.place(rate * (1 - error)), up.place(rate * (1 + error)), kind)
    draw_mark(chart, "circle", x, up.place(rate), kind, f"{_name(trial)}: {_describe_rate(rate, error)}")


def _name(trial: TrialSummary) -> str:
    config = trial.config
    return f"Trial {trial.number}, {describe_config(config)}"


def _describe_rate(rate: float, error: float) -> str:
    return f"{format_rate(rate)} ±{format_percent(error)}" if error else format_rate(rate)


def _draw_curve(chart: Element, curve: Sequence[ScalingPoint], across: Scale, up: Scale) -> None:
    """Draw what the model expects, and the band that holds 95 % of it."""
    if len(curve) < 2:
        return
    places = [across.place(point.num_workers) for point in curve]
    low, line, high = (
        [
            up.place(point.samples_per_second * math.exp(side * IN_95 * min(point.relative_error, WIDEST)))
            for point in curve
        ]
        for side in (-1, 0, 1)
    )
    there = list(zip(places, high, strict=True))
    back = list(zip(reversed(places), reversed(low), strict=True))
    draw(chart, "polygon", class_="band", points=_list_points([*there, *back]))
    draw(chart, "polyline", class_="curve", points=_list_points(list(zip(places, line, strict=True))))


def _list_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _draw_both(chart: Element, profile: TunedProfile, across: Scale, up: Scale) -> None:
    """Draw the baseline and the answer, as they were confirmed."""
    result, base = profile.result, profile.result.baseline
    if base is not None and result.verdict == "faster":
        x, y = across.place(base.dataloader.num_workers), up.place(base.samples_per_second)
        draw_mark(chart, "square", x, y, "before", f"{base.description}: {format_rate(base.samples_per_second)}")
        draw_label(chart, f"before {format_rate(base.samples_per_second)}", x, y + 5)
    x, y = across.place(profile.dataloader.num_workers), up.place(result.samples_per_second)
    if result.samples_per_second_ci95 is not None:
        low, high = result.samples_per_second_ci95
        draw_interval(chart, x, up.place(low), up.place(high), "answer")
    words = f"{'kept' if result.verdict == 'keep' else 'answer'} {format_rate(result.samples_per_second)}"
    draw_mark(chart, "diamond", x, y, "answer", words)
    draw_label(chart, words, x, y - 9, "answer")


def _draw_limit(chart: Element, y: float, words: str, kind: str, *, is_below: bool = False) -> None:
    draw(chart, "line", class_=f"limit {kind}", x1=LEFT, x2=RIGHT, y1=y, y2=y)
    draw(chart, "text", words, class_="label", x=LEFT + 6, y=y + (14 if is_below else -5))


def draw_memory(profile: TunedProfile, evidence: SearchEvidence) -> str | None:
    """Draw memory against throughput, with the budgets.

    Args:
        profile: The profile.
        evidence: Its evidence.

    Returns:
        The drawing; None when no memory was sampled.
    """
    result, budgets = profile.result, profile.budgets
    seen = [trial for trial in evidence.trials if trial.samples_per_second is not None and trial.peak_host_bytes]
    peaks = [peak for trial in seen for peak in (trial.peak_host_bytes, trial.peak_shm_bytes)]
    peaks = [peak for peak in (*peaks, result.peak_host_bytes, result.peak_shm_bytes) if peak]
    if not peaks:
        return None
    allowed = [budget for budget in (budgets.memory_bytes, budgets.shm_bytes) if budget]
    up = make_doubling_scale(min(peaks), max([*peaks, *allowed]), BOTTOM, TOP)
    across = make_scale(HEADROOM * find_fastest(profile, evidence), LEFT, RIGHT - INSET)
    chart = start_chart("memory", "Memory against throughput", describe_memory(profile))
    labels = [f"{tick:,g}" for tick in across.ticks], [format_bytes(tick).replace(".0 ", " ") for tick in up.ticks]
    draw_axes(chart, across, up, labels, ("samples per second", "memory at its peak"))
    _draw_budgets(chart, profile, up)
    for trial in seen:
        _draw_peaks(chart, trial, across, up)
    _draw_answer_peaks(chart, profile, across, up)
    return write(chart)


def describe_memory(profile: TunedProfile) -> str:
    """Say what the chart of memory shows."""
    result, budgets = profile.result, profile.budgets
    return (
        f"The answer peaks at {format_bytes(result.peak_host_bytes)} of host memory, of which "
        f"{format_bytes(budgets.memory_bytes)} may be used, and at {format_bytes(result.peak_shm_bytes)} of /dev/shm, "
        f"of which {format_bytes(budgets.shm_bytes)} may be used."
    )


def _draw_budgets(chart: Element, profile: TunedProfile, up: Scale) -> None:
    """Draw both budgets as lines; the label of the lower one stands below it, so that close ones stay apart."""
    named = (("host memory", profile.budgets.memory_bytes), ("/dev/shm", profile.budgets.shm_bytes))
    ordered = sorted((budget, name) for name, budget in named if budget)
    for number, (budget, name) in enumerate(ordered):
        kind = "shm" if name == "/dev/shm" else "host"
        is_below = number == 0 and len(ordered) > 1
        _draw_limit(chart, up.place(budget), f"limit of {name} {format_bytes(budget)}", kind, is_below=is_below)


def _draw_peaks(chart: Element, trial: TrialSummary, across: Scale, up: Scale) -> None:
    x = across.place(trial.samples_per_second or 0.0)
    host, shm = trial.peak_host_bytes, trial.peak_shm_bytes
    draw_mark(chart, "circle", x, up.place(host), "alike", f"{_name(trial)}: host memory {format_bytes(host)}")
    if shm:
        draw_mark(chart, "triangle", x, up.place(shm), "shm", f"{_name(trial)}: /dev/shm {format_bytes(shm)}")


def _draw_answer_peaks(chart: Element, profile: TunedProfile, across: Scale, up: Scale) -> None:
    result = profile.result
    x = across.place(result.samples_per_second)
    for name, peak in (("host memory", result.peak_host_bytes), ("/dev/shm", result.peak_shm_bytes)):
        if peak:
            draw_mark(chart, "diamond", x, up.place(peak), "answer", f"answer: {name} {format_bytes(peak)}")
            draw_label(chart, f"{name} {format_bytes(peak)}", x, up.place(peak) - 9, "answer")
