"""The report as Markdown, for a pull request: the answer, what each setting gave, what to know, how to repeat it.

Everything a tuned file says is untrusted: it stands in code spans, or with its punctuation escaped, so that it can
neither break a table nor become a link, a picture or a heading.
"""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from autotune.profiles.schema import TunedProfile
from autotune.report.summary import collect_parts, format_number
from autotune.report.text import describe_gain


class Markdown(str):
    """Text that is Markdown already; the template escapes every other."""

    __slots__ = ()


def render_markdown(profile: TunedProfile, file: str) -> str:
    """Write the report as GitHub and GitLab read it; `file` is the path by which training code names the tuned file."""
    return _open_environment().get_template("report.md").render(collect_parts(profile, file))


@cache
def _open_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("autotune.report"),
        autoescape=False,  # noqa: S701  # that would be for HTML; `finalize` escapes for Markdown
        finalize=lambda text: text if isinstance(text, Markdown) else escape(str(text)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "code": write_code,
        "fence": fence,
        "gain": lambda step: Markdown(describe_gain(step)),
        "number": format_number,
    }
    return environment


def escape(text: str) -> Markdown:
    """Escape whatever Markdown or HTML could read as more than text, in one line."""
    line = re.sub(r"([\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))
    line = re.sub(r"^([-+#>=])", r"\\\1", line)
    return Markdown(re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", line))  # not the start of a numbered list


def write_code(text: str) -> Markdown:
    """Write a code span that holds in a table, whatever is in it."""
    line = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks, space = "`" * (longest + 1), " " if longest else ""
    return Markdown(f"{ticks}{space}{line}{space}{ticks}" if line else "")


def fence(text: str, language: str) -> Markdown:
    """Write a block of code, between fences longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    return Markdown(f"{'`' * (longest + 1)}{language}\n{text}\n{'`' * (longest + 1)}")
