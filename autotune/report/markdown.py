"""The report as Markdown, for a pull request: the answer, what each setting gave, what to know, how to repeat it.

Everything a tuned file says is untrusted: it stands in code spans, or with its punctuation escaped, so that it can
neither break a table nor become a link, a picture or a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from autotune.profiles.schema import TunedProfile
from autotune.report.answer import (
    Figure,
    describe_headline,
    format_number,
    list_figures,
    list_settings,
    provenance,
    usage_snippet,
)
from autotune.report.reproduce import describe_command
from autotune.report.text import describe_gain, warnings_of


def make_summary(profile: TunedProfile, file: str) -> str:
    """Write the summary.

    Args:
        profile: The profile.
        file: Path of the tuned file, as training code names it.

    Returns:
        Markdown, as GitHub and GitLab read it.
    """
    parts = [
        f"### dltune: {escape(describe_headline(profile))}",
        *(f"- {_describe_figure(figure)}" for figure in list_figures(profile)),
        "",
        *_list_settings(profile),
        *_list_ablation(profile),
        *_list_sentences("Before you use it", warnings_of(profile)),
        *_list_sentences("Beyond the settings", profile.result.advice),
        fence(usage_snippet(profile, file), "python"),
        "",
        *_list_origin(profile),
    ]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Escape whatever Markdown or HTML could read as more than text, in one line."""
    line = re.sub(r"([\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", " ".join(text.split()))
    line = re.sub(r"^([-+#>=])", r"\\\1", line)
    return re.sub(r"^(\d+)([.)])(?= |$)", r"\1\\\2", line)  # not the start of a numbered list


def write_code(text: str) -> str:
    """Write a code span that holds in a table, whatever is in it."""
    line = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks, space = "`" * (longest + 1), " " if longest else ""
    return f"{ticks}{space}{line}{space}{ticks}" if line else ""


def fence(text: str, language: str) -> str:
    """Write a block of code, between fences longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    return f"{'`' * (longest + 1)}{language}\n{text}\n{'`' * (longest + 1)}"


def _describe_figure(figure: Figure) -> str:
    return f"{figure.label}: **{escape(figure.number)}** {escape(figure.unit)} ({escape(figure.remark)})".replace(
        "  ", " "
    )


def _write_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [*("| " + " | ".join(cells) + " |" for cells in lines), ""]


def _list_settings(profile: TunedProfile) -> list[str]:
    rows = [
        (write_code(setting.name), write_code(setting.was or setting.value), write_code(setting.value))
        for setting in list_settings(profile)
    ]
    return _write_table(("setting", "before", "tuned"), rows)


def _list_ablation(profile: TunedProfile) -> list[str]:
    base, steps = profile.result.baseline, profile.result.ablation
    if base is None or not steps:
        return []
    rows = [(escape(base.description), format_number(base.samples_per_second), "")]
    rows += [(write_code(step.setting), format_number(step.samples_per_second), describe_gain(step)) for step in steps]
    return _write_table(("what each setting gave", "samples/s", "factor"), rows)


def _list_sentences(heading: str, sentences: Sequence[str]) -> list[str]:
    return [f"**{heading}**", "", *(f"- {escape(sentence)}" for sentence in sentences), ""] if sentences else []


def _list_origin(profile: TunedProfile) -> list[str]:
    """List where the numbers come from, folded away."""
    command = describe_command(profile.request)
    facts = [f"- {name}: {escape(words)}" for name, words in provenance(profile)]
    block = [fence(command, "sh"), ""] if command is not None else []
    return ["<details><summary>The same again</summary>", "", *block, *facts, "", "</details>"]
