"""Reports of a profile: the text at the end of a run and of `dltune show`, Markdown, and an HTML page.

The page loads nothing: its template escapes all text, and its policy allows no other script than its own.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import shlex
import textwrap
from typing import Final

from autotune.profiles.schema import TunedProfile
from autotune.report.sections import Report, Table, make_report
from autotune.settings import describe_config, format_arguments
from autotune.units import format_count, format_rate, format_seconds

WIDTH: Final = 100  # columns, if the output is not a terminal
MAX_TICKS: Final = 5
_INDENT: Final = " " * 8
_LINKS: Final = re.compile(r"://|www\.|@|#\d", re.IGNORECASE)  # GitHub makes links of these even if they are escaped


def render_summary(profile: TunedProfile, file: str, *, width: int = WIDTH, name: str | None = None) -> str:
    """Write the end of a run: the result, at most one tip and one warning, and lines to paste.

    Only lines to paste are wider than `width` columns; `name` selects the profile if the file holds several workloads.
    """
    report, is_change = make_report(profile, file, name), profile.result.decision == "faster"
    base, size = profile.result.baseline, profile.config.dataloader.batch_size
    arguments = format_arguments(
        profile.config, with_batch_size=base is None or size != base.config.dataloader.batch_size
    )
    result = [arguments if is_change else f"{report.headline}.", report.throughput, report.brief]
    result += [] if profile.is_validated else [report.evidence]
    rows = list(zip(["Result  ", *[_INDENT] * 3], result, strict=False))
    rows += [("Tip     ", tip) for tip in report.advice[:1]] + [("Warning ", text) for text in report.warnings[:1]]
    kinds = (("tip", len(report.advice) - 1), ("warning", len(report.warnings) - 1))
    left = " and ".join(format_count(count, f"more {kind}") for kind, count in kinds if count > 0)
    more = f" {left}: {format_command('show', file, name)}." if left else ""
    saved = f"Saved to {file} in {format_seconds(profile.search.seconds)}.{more}"
    rows.append(("", f"{saved} Report: {format_command('report', file, name)}"))
    wrapper = textwrap.TextWrapper(width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
    folded = (wrapper.fill(start + text) for start, text in rows)
    return "\n".join([*folded, *(_usage(report) if is_change else [])])


def render_profile(profile: TunedProfile, file: str, *, name: str | None = None) -> str:
    """Write everything that a report holds, for `dltune show`."""
    report = make_report(profile, file, name)
    lines = [report.title, "", report.headline, report.throughput, report.brief, report.evidence]
    lines += [f"Tip     {tip}" for tip in report.advice] + [f"Warning {text}" for text in report.warnings]
    lines += _usage(report)
    for table in report.tables:
        rows = [[" ".join(cell.split()) for cell in row] for row in (table.columns, *table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        lines += ["", table.title, *(f"  {row}" for row in aligned)]
    return "\n".join(lines)


def format_command(verb: str, file: str, name: str | None) -> str:
    """Write a command about a profile of a file; `name` selects it if the file holds several workloads."""
    return shlex.join(["dltune", verb, *([file] * (file != "dltune.json")), *(["--profile", name] if name else [])])


def _usage(report: Report) -> list[str]:
    codes = {"Use it  ": report.plain_code, "   or   ": report.load_code.replace("autotune\n", "autotune; ", 1)}
    return ["", *(f"{label}{textwrap.indent(code, _INDENT).lstrip()}" for label, code in codes.items())]


def render_markdown(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the report for GitHub or GitLab; text from a file becomes no link, image, heading or cell of a table."""
    report = make_report(profile, file, name)
    sentences = [f"{report.throughput}; {report.brief}. {report.evidence}", *report.warnings, *report.advice]
    parts = [f"### dltune: {escape(report.headline)}", "\n".join(f"- {escape(sentence)}" for sentence in sentences)]
    parts += [_table(report.tables[0]), fence(report.plain_code, "python"), fence(report.load_code, "python")]
    parts.append(f"<details><summary>Details</summary>\n\n{escape(report.title)}")
    parts += [f"**{table.title}**\n\n{_table(table)}" for table in report.tables[1:]]
    return "\n\n".join([*parts, "</details>\n"])


def _table(table: Table) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *([escape(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def escape(text: str) -> str:
    """Escape all Markdown and HTML in a text, in one line; put what becomes a link into code."""
    parts = re.split(r"([\s|`]+)", " ".join(text.split()))
    special = r"([\\`*\[\]<|~&]|(?<![^\W_])_|_(?![^\W_]))"
    line = "".join(f"`{part}`" if _LINKS.search(part) else re.sub(special, r"\\\1", part) for part in parts)
    return re.sub(r"^(\d+)([.)])(?= |$)|^(?=[-+#>=])", r"\1\\\2", line)


def fence(text: str, language: str) -> str:
    """Write a block of code between fences longer than any in it."""
    ticks = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{ticks}{language}\n{text}\n{ticks}"


def render_html(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the page; `name` selects the profile if the file holds several workloads."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not at the end of a run

    jinja = Environment(loader=PackageLoader("autotune.report"), autoescape=True, undefined=StrictUndefined)
    jinja.filters |= {"number": format_rate, "count": format_count, "seconds": format_seconds}
    jinja.filters["config"] = describe_config
    jinja.filters["sha256"] = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    result, trials, scaling = profile.result, profile.search.trials, profile.search.scaling
    rates = [*scaling.values(), *(trial.samples_per_second or 0.0 for trial in trials)]
    workers = [*scaling, *(one.dataloader.num_workers for one in (profile, result.baseline or profile, *trials))]
    return jinja.get_template("report.html").render(
        profile=profile,
        report=make_report(profile, file, name),
        x_ticks=make_ticks(max(MAX_TICKS, *workers)),
        y_ticks=make_ticks(max([result.samples_per_second, *rates, *(result.samples_per_second_ci95 or ())])),
    )


def make_ticks(high: float) -> list[float]:
    """Return at most `MAX_TICKS` + 1 round numbers from 0 to at least `high`."""
    least = max(high, 1e-9) / MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= least * (1 - 1e-9))
    return [step * tick for tick in range(max(1, math.ceil(high / step - 1e-9)) + 1)]
