"""The charts that a profile's evidence allows, each with its heading, what it shows and what its symbols mean."""

from __future__ import annotations

from autotune.config import FrozenModel
from autotune.profiles.schema import SearchEvidence, TunedProfile
from autotune.report.bars import count_samples, draw_ablation, draw_batch_time, draw_importance
from autotune.report.charts import CEILING_SHOWN, draw_memory, draw_throughput, find_fastest, is_alike
from autotune.report.svg import draw_symbol
from autotune.units import format_rate


class Symbol(FrozenModel):
    """One entry of a legend: a drawing, and what it stands for."""

    drawing: str
    words: str


class Exhibit(FrozenModel):
    """A chart with the words around it.

    Attributes:
        title: Its heading.
        about: What it shows.
        drawing: The chart, as SVG whose texts are escaped.
        legend: What its symbols stand for.
    """

    title: str
    about: str
    drawing: str
    legend: tuple[Symbol, ...] = ()


def list_exhibits(profile: TunedProfile) -> list[Exhibit]:
    """List the charts for a profile; one without evidence has fewer."""
    evidence = profile.evidence or SearchEvidence()
    exhibits = (
        _show_throughput(profile, evidence),
        _show_memory(profile, evidence),
        _show_batch_time(profile),
        _show_ablation(profile),
        _show_importance(evidence),
    )
    return [exhibit for exhibit in exhibits if exhibit is not None]


def _show_throughput(profile: TunedProfile, evidence: SearchEvidence) -> Exhibit | None:
    if not evidence.trials:
        return None
    about = "Each trial of the search with its 95 % interval; the answer as confirmed in fresh processes."
    ceiling = profile.result.ceiling_samples_per_second or 0.0
    if ceiling > CEILING_SHOWN * find_fastest(profile, evidence):
        about += f" The step alone would reach {format_rate(ceiling)}, far above this chart."
    drawing = draw_throughput(profile, evidence)
    return Exhibit(
        title="Throughput against workers", about=about, drawing=drawing, legend=_explain_marks(profile, evidence)
    )


def _explain_marks(profile: TunedProfile, evidence: SearchEvidence) -> tuple[Symbol, ...]:
    """Explain the marks that occur."""
    result = profile.result
    measured = [trial for trial in evidence.trials if trial.samples_per_second is not None]
    alike = [is_alike(trial, profile) for trial in measured]
    marks = (
        ("diamond", "answer", "the answer", True),
        ("square", "before", "before", result.baseline is not None and result.verdict == "faster"),
        ("circle", "alike", "trial, all but the workers as in the answer", any(alike)),
        ("circle", "other", "trial, something else differs as well", not all(alike)),
        ("cross", "failed", "failed or skipped", len(measured) < len(evidence.trials)),
        ("line", "curve", "expected by the model, with its 95 % band", len(evidence.scaling_curve) > 1),
    )
    return tuple(_explain(shape, kind, words) for shape, kind, words, occurs in marks if occurs)


def _explain(shape: str, kind: str, words: str) -> Symbol:
    return Symbol(drawing=draw_symbol(shape, kind), words=words)


def _show_memory(profile: TunedProfile, evidence: SearchEvidence) -> Exhibit | None:
    drawing = draw_memory(profile, evidence) if evidence.trials else None
    if drawing is None:
        return None
    marks = (
        ("diamond", "answer", "the answer"),
        ("circle", "alike", "trial: host memory"),
        ("triangle", "shm", "trial: /dev/shm"),
        ("line", "limit", "limit"),
    )
    about = "The largest use seen in each trial, and what a trial may use. Each line up is a doubling or more."
    legend = tuple(_explain(*mark) for mark in marks)
    return Exhibit(title="Memory against throughput", about=about, drawing=drawing, legend=legend)


def _show_batch_time(profile: TunedProfile) -> Exhibit:
    knows_work = profile.evidence is not None and profile.evidence.batch_time is not None
    parts = [("load", "fetch"), ("collate", "collate"), ("transfer", "send to the training process")]
    if profile.evidence is not None and profile.evidence.batch_time and profile.evidence.batch_time.copy_seconds:
        parts.append(("copy", "copy to the device"))
    bars = (*(parts if knows_work else ()), ("waiting", "wait for data"), ("step", "step, and the rest"))
    about = f"For {count_samples(profile):,} samples. What workers do ahead, the training process need not wait for."
    legend = tuple(_explain("bar", kind, words) for kind, words in bars)
    return Exhibit(title="Where the time of a batch goes", about=about, drawing=draw_batch_time(profile), legend=legend)


def _show_ablation(profile: TunedProfile) -> Exhibit | None:
    drawing = draw_ablation(profile)
    if drawing is None:
        return None
    bars = (("before", "reached before"), ("gained", "gained"), ("lost", "lost"))
    lost = any(step.speedup < 1 for step in profile.result.ablation)
    return Exhibit(
        title="What each setting gave",
        about="From the baseline to the answer, one setting after the other, all measured in turn in the same rounds.",
        drawing=drawing,
        legend=tuple(_explain("bar", kind, words) for kind, words in bars if kind != "lost" or lost),
    )


def _show_importance(evidence: SearchEvidence) -> Exhibit | None:
    drawing = draw_importance(evidence)
    if drawing is None:
        return None
    about = (
        "How much the throughput expected by the model varies along each setting, all else as in the answer; "
        "shares of the sum."
    )
    return Exhibit(title="Which settings matter", about=about, drawing=drawing)
