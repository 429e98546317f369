"""The chart of what each setting gave, as plain numbers: the template `charts.html` draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from autotune.profiles.schema import AblationStep, TunedProfile
from autotune.report.axes import LETTER_WIDTH, MIN_THROUGHPUT, PLOT, Scale
from autotune.report.text import describe_gain
from autotune.units import format_rate

MAX_INTERVAL_RATIO: Final = 1.2  # of the longest bar; an interval above it would flatten all of them


@dataclass(frozen=True, slots=True)
class AblationBar:
    """Throughput after one more setting; lengths and ends are in units of the drawing."""

    label: str  # cut where it is too long
    value: str
    words: str  # all of both, with the interval
    kept: float  # length of what was there already
    changed: float = 0.0  # length of what the setting gained or lost
    is_loss: bool = False
    interval: tuple[float, float] | None = None  # 95 %; None where it was not measured


def plot_ablation(profile: TunedProfile) -> list[AblationBar]:
    """Place the throughput after each setting, from the baseline to the answer; none where it was not measured."""
    base, steps = profile.result.baseline, profile.result.ablation
    if base is None or not steps:
        return []
    rates = [base.samples_per_second, *(step.samples_per_second for step in steps)]
    longest = max(*rates, MIN_THROUGHPUT)
    furthest = max((_find_interval(step) or (0.0, 0.0))[1] for step in steps)
    scale = Scale(min(max(longest, furthest), MAX_INTERVAL_RATIO * longest), 0, PLOT.width)
    value = format_rate(rates[0])
    first = AblationBar(_cut(base.description, value), value, f"{base.description}: {value}", scale.place(rates[0]))
    return [first, *(_plot_step(scale, before, step) for before, step in zip(rates, steps, strict=False))]


def _plot_step(scale: Scale, before: float, step: AblationStep) -> AblationBar:
    after, bounds = step.samples_per_second, _find_interval(step)
    value = f"{format_rate(after)}   {step.speedup:.2f}x{', noise' if step.is_noise else ''}"  # with a bar beside it
    kept = scale.place(min(before, after))
    return AblationBar(
        label=_cut(f"+ {step.setting}", value),
        value=value,
        words=f"{step.setting}: {format_rate(after)}   {describe_gain(step)}",
        kept=kept,
        changed=round(scale.place(max(before, after)) - kept, 1),
        is_loss=after < before,
        interval=None if bounds is None else (scale.place(bounds[0]), scale.place(bounds[1])),
    )


def _find_interval(step: AblationStep) -> tuple[float, float] | None:
    """Find the 95 % interval of what a step reached, in samples per second, from that of its speed-up."""
    if step.speedup_ci95 is None or not step.speedup:
        return None
    low, high = (step.samples_per_second * bound / step.speedup for bound in step.speedup_ci95)
    return low, high


def _cut(text: str, value: str) -> str:
    """Cut a text that leaves no room for the value beside it, and show that it was cut."""
    room = max(1, int(PLOT.width / LETTER_WIDTH) - len(value) - 2)
    return text if len(text) <= room else text[: room - 1] + "…"
