"""Writes the table of the search space into its page, because no ready-made plugin reads `autotune.settings`."""

from __future__ import annotations

from typing import Any, Final

from autotune.settings import SETTINGS, Setting

MARKER: Final = "<!-- settings -->"
HEAD: Final = "| setting | description | values | default | recommended |\n| --- | --- | --- | --- | --- |"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker by the table when mkdocs builds a page."""
    return markdown.replace(MARKER, "\n".join([HEAD, *map(_format_row, SETTINGS.values())]))


def _format_row(setting: Setting) -> str:
    first, *rest = map(_format_value, setting.choices)
    values = f"{first} to {rest[-1]}" if setting.name == "num_workers" else ", ".join([first, *rest])
    needs = "" if setting.needs is None else f" Needs `{setting.needs}`."
    mark = "*" if setting.changes_training else ""
    defaults = map(_format_value, (setting.default, setting.recommended))
    return f"| `{setting.name}`{mark} | {setting.description}{needs} | {values} | {' | '.join(defaults)} |"


def _format_value(value: object) -> str:
    return "unlimited" if value is None else f"`{value}`"
