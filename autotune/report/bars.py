"""Draws where a batch's time goes, what each setting gave, and which knobs matter."""

from __future__ import annotations

from autotune.profiles.schema import AblationStep, SearchEvidence, TunedProfile
from autotune.report.svg import Bar, Row, draw_rows
from autotune.report.text import describe_gain
from autotune.units import format_percent, format_rate, format_seconds

WITHOUT_BATCHES = 1000  # samples that the time is shown for where the size of a batch is not known


def draw_batch_time(profile: TunedProfile) -> str:
    """Draw the work in one batch, and what is left of it before and after: waiting, and the rest.

    Args:
        profile: The profile.

    Returns:
        The drawing.
    """
    rows = [*_list_work(profile.evidence), *list_passes(profile)]
    description = "; ".join(f"{row.label}: {row.value} ({row.note})" for row in rows) + "."
    return draw_rows("batch-time", "Where the time of a batch goes", description, rows)


def count_samples(profile: TunedProfile) -> int:
    """Count the samples that the chart of a batch's time is about."""
    known = profile.evidence.batch_time if profile.evidence is not None else None
    return known.samples if known is not None else profile.dataloader.batch_size or WITHOUT_BATCHES


def _list_work(evidence: SearchEvidence | None) -> list[Row]:
    if evidence is None or evidence.batch_time is None:
        return []
    parts = evidence.batch_time.model_dump(exclude={"samples"})
    if not parts["copy_seconds"]:
        del parts["copy_seconds"]
    names = {"load": "fetch", "collate": "collate", "transfer": "send", "copy_seconds": "copy", "step": "step"}
    words = {part: f"{names[part]} {format_seconds(seconds)}" for part, seconds in parts.items()}
    bars = tuple(
        Bar(length=seconds, kind=f"bar {part.partition('_')[0]}", words=words[part]) for part, seconds in parts.items()
    )
    value = format_seconds(sum(parts.values()))
    return [Row(label="The work, one after the other", value=value, bars=bars, note=" · ".join(words.values()))]


def list_passes(profile: TunedProfile) -> list[Row]:
    """List what the time of a batch is spent on in training, before and after.

    Args:
        profile: The profile.

    Returns:
        A row for the baseline, where it could run, and one for the answer.
    """
    result, base = profile.result, profile.result.baseline
    samples = count_samples(profile)
    rows = []
    if base is not None and result.verdict == "faster":
        rows.append(_split("Before, in training", samples, base.samples_per_second, base.data_wait_fraction))
    label = "Kept, in training" if result.verdict == "keep" else "After, in training"
    return [*rows, _split(label, samples, result.samples_per_second, result.data_wait_fraction)]


def _split(label: str, samples: int, samples_per_second: float, wait_fraction: float) -> Row:
    seconds = samples / max(samples_per_second, 1e-9)
    waiting, rest = wait_fraction * seconds, (1 - wait_fraction) * seconds
    words = f"waiting for data {format_seconds(waiting)}", f"step and the rest {format_seconds(rest)}"
    bars = Bar(length=waiting, kind="bar waiting", words=words[0]), Bar(length=rest, kind="bar step", words=words[1])
    return Row(label=label, value=format_seconds(seconds), bars=bars, note=" · ".join(words))


def draw_ablation(profile: TunedProfile) -> str | None:
    """Draw the throughput after each setting, from the baseline to the answer.

    Args:
        profile: The profile.

    Returns:
        The drawing; None when the steps were not measured.
    """
    base, steps = profile.result.baseline, profile.result.ablation
    if base is None or not steps:
        return None
    start = base.samples_per_second
    rows = [Row(label=base.description, value=format_rate(start), bars=(Bar(length=start, kind="bar before"),))]
    for before, step in zip([start, *(step.samples_per_second for step in steps)], steps, strict=False):
        rows.append(_show_step(before, step))
    description = "; ".join(f"{row.label}: {row.value}" for row in rows) + "."
    return draw_rows("ablation", "What each setting gave", description, rows)


def _show_step(before: float, step: AblationStep) -> Row:
    """Show what was there, and what the setting added to it or took away."""
    after = step.samples_per_second
    changed = Bar(length=abs(after - before), kind="bar gained" if after >= before else "bar lost")
    value = f"{format_rate(after)}   {describe_gain(step)}"
    kept = Bar(length=min(before, after), kind="bar before")
    return Row(label=f"+ {step.setting}", value=value, bars=(kept, changed))


def draw_importance(evidence: SearchEvidence) -> str | None:
    """Draw by how much the expected throughput varies along each knob, as shares of the sum.

    Args:
        evidence: The evidence.

    Returns:
        The drawing, the most important knob first; None when nothing varies.
    """
    if not evidence.knob_importance:
        return None
    ranked = sorted(evidence.knob_importance.items(), key=lambda pair: -pair[1])
    rows = [
        Row(label=knob, value=format_percent(share), bars=(Bar(length=share, kind="bar gained"),))
        for knob, share in ranked
    ]
    description = "; ".join(f"{row.label} {row.value}" for row in rows) + "."
    return draw_rows("importance", "Which settings matter", description, rows)
