"""The report as Markdown, for a pull request.

Text from a file is escaped, so that it can neither break a table nor become a link, an image or a heading.
"""

from __future__ import annotations

import re

from autotune.profiles.schema import TunedProfile
from autotune.report.sections import Table, make_report


def render_markdown(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the report as GitHub and GitLab read it; `name` selects the profile if the file holds several workloads."""
    report = make_report(profile, file, name)
    sentences = [f"{report.throughput}; {report.brief}. {report.evidence}", *report.warnings, *report.advice]
    parts = [f"### dltune: {escape(report.headline)}", "\n".join(f"- {escape(sentence)}" for sentence in sentences)]
    parts += [_table(report.settings), fence(report.plain_code, "python"), fence(report.load_code, "python")]
    parts.append(f"<details><summary>Details</summary>\n\n{escape(report.title)}")
    parts += [f"**{table.title}**\n\n{_table(table)}" for table in report.tables]
    parts += [fence(report.command, "sh")] if report.command else []
    return "\n\n".join([*parts, "</details>\n"])


def _table(table: Table) -> str:
    rows = [table.columns, ("---",) * len(table.columns), *([*map(escape, row)] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def escape(text: str) -> str:
    """Escape whatever Markdown or HTML reads as more than text, in one line; put what becomes a link into code."""
    parts = re.split(r"([\s|`]+)", " ".join(text.split()))
    return re.sub(r"^(\d+)([.)])(?= |$)|^(?=[-+#>=])", r"\1\\\2", "".join(map(_escape_part, parts)))


def _escape_part(part: str) -> str:
    if re.search(r"://|www\.|@|#\d", part, re.IGNORECASE):  # GitHub makes links of these even if they are escaped
        return f"`{part}`"
    return re.sub(r"([\\`*\[\]<|~&]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", part)


def fence(text: str, language: str) -> str:
    """Write a block of code between fences longer than any in it."""
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{ticks}{language}\n{text}\n{ticks}"
