"""A result as plain text: the end of a run, and `dltune show`."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from typing import Final

from autotune.profiles.schema import TunedProfile
from autotune.report.sections import Report, make_report, number
from autotune.settings import format_arguments
from autotune.units import format_seconds

WIDTH: Final = 100  # columns, if the output is not a terminal
_INDENT: Final = " " * 8
_DEFAULT_FILE: Final = "dltune.json"  # that commands read if none is given


def render_summary(
    profile: TunedProfile, file: str, *, width: int = WIDTH, interrupted: bool = False, name: str | None = None
) -> str:
    """Write the end of a run: the result, at most one tip and one warning, and lines to paste, which are not folded.

    Args:
        profile: The result.
        file: The file that it was saved to.
        width: Columns.
        interrupted: Whether the run was interrupted.
        name: Name that selects the profile if the file holds several workloads.
    """
    report, is_change = make_report(profile, file, name), profile.result.verdict == "faster"
    result = [_arguments(profile) if is_change else f"{report.headline}.", report.throughput, report.brief]
    result += [report.evidence] if interrupted or not profile.is_validated else []
    left = len(report.advice[1:]) + len(report.warnings[1:])
    more = f"{left} more: {_command('show', file, name)}   " if left else ""
    saved = (
        f"Saved to {file} in {format_seconds(profile.search.seconds)}. {more}Report: {_command('report', file, name)}"
    )
    lines = [*_fold("Result", result, width), *_fold("Tip", report.advice[:1], width)]
    lines += [*_fold("Warning", report.warnings[:1], width), *textwrap.wrap(saved, width, break_on_hyphens=False)]
    return "\n".join([*lines, *(_usage(report) if is_change else [])])


def render_verified(
    profile: TunedProfile, file: str, samples_per_second: float, *, width: int = WIDTH, name: str | None = None
) -> str:
    """Write that a stored result is still valid; `samples_per_second` is what it reaches now."""
    then = f"{number(profile.result.samples_per_second)} when tuned on {profile.created_at:%Y-%m-%d}"
    rates = f"still valid: {number(samples_per_second)} samples/s, {then}"
    result = [_arguments(profile), rates, f"{file} is unchanged; --fresh tunes from scratch."]
    return "\n".join([*_fold("Result", result, width), *_usage(make_report(profile, file, name))])


def render_profile(profile: TunedProfile, file: str, *, name: str | None = None) -> str:
    """Write everything that a report holds, for `dltune show`."""
    report = make_report(profile, file, name)
    lines = [report.title, "", report.headline, report.throughput, report.brief, report.evidence]
    lines += [f"Warning {warning}" for warning in report.warnings] + [f"Tip     {advice}" for advice in report.advice]
    lines += _usage(report)
    for table in (report.settings, *report.tables):
        rows = [[" ".join(cell.split()) for cell in row] for row in (table.columns, *table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        lines += ["", table.title, *(f"  {row}" for row in aligned)]
    return "\n".join([*lines, *(f"  {line}" for line in (report.command or "").splitlines())])


def _arguments(profile: TunedProfile) -> str:
    base = profile.result.baseline or profile
    return format_arguments(profile.config, with_batch_size=base.dataloader.batch_size != profile.dataloader.batch_size)


def _command(verb: str, file: str, name: str | None) -> str:
    return shlex.join(
        ["dltune", verb, *([] if file == _DEFAULT_FILE else [file]), *(["--profile", name] if name else [])]
    )


def _fold(label: str, sentences: Sequence[str], width: int) -> list[str]:
    """Fold sentences, the first of them behind a label."""
    starts = [f"{label:<8}", *[_INDENT] * len(sentences)]
    return [
        row
        for start, sentence in zip(starts, sentences, strict=False)
        for row in textwrap.wrap(
            sentence, width, initial_indent=start, subsequent_indent=_INDENT, break_on_hyphens=False
        )
    ]


def _usage(report: Report) -> list[str]:
    codes = {"Use it  ": report.plain_code, "   or   ": report.load_code.replace("autotune\n", "autotune; ", 1)}
    return ["", *(f"{label}{textwrap.indent(code, _INDENT).lstrip()}" for label, code in codes.items())]
