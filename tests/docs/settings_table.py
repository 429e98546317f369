"""Writes the table of the search space into its page, from the settings: `python -m tests.docs.settings_table`."""

from __future__ import annotations

import re
from typing import Final

from autotune.settings import SETTINGS, Setting
from tests.docs.markdown import ROOT

HEAD: Final = "| setting | description | values | default | recommended |\n| --- | --- | --- | --- | --- |"
PAGE: Final = ROOT / "docs" / "settings.md"


def format_table() -> str:
    """Return the table of all settings."""
    return "\n".join([HEAD, *map(_format_row, SETTINGS.values())])


def _format_row(setting: Setting) -> str:
    first, *rest = map(_format_value, setting.choices)
    values = f"{first} to {rest[-1]}" if setting.name == "num_workers" else ", ".join([first, *rest])
    needs = "" if setting.needs is None else f" Needs `{setting.needs}`."
    mark = "*" if setting.changes_training else ""
    defaults = map(_format_value, (setting.default, setting.recommended))
    return f"| `{setting.name}`{mark} | {setting.description}{needs} | {values} | {' | '.join(defaults)} |"


def _format_value(value: object) -> str:
    return "unlimited" if value is None else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(re.sub(r"(?m)(^\|.*\n)+", f"{format_table()}\n", PAGE.read_text()))
