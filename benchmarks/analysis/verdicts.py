"""A target, what was measured against it, and the words for the distance between them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["%", "s", "ms", "MB", ""]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the summary."""

    what: str
    value: float | None  # a share where the unit is `%`; None when it was not measured
    unit: Unit
    target: float | None = None  # None for a number that is shown without being judged
    sense: Literal["at most", "at least"] = "at most"  # which side of the target is good
    detail: str = ""  # such as how many values stand behind it

    @property
    def is_reached(self) -> bool:
        """Whether the value is on the good side of the target."""
        if self.value is None or self.target is None:
            return False
        return self.value <= self.target if self.sense == "at most" else self.value >= self.target

    def describe(self) -> str:
        """Say whether the target was reached, or how far it was missed."""
        if self.target is None:
            return ""
        if self.value is None:
            return "not measured"
        return "reached" if self.is_reached else f"missed by {format_value(abs(self.value - self.target), self.unit)}"

    def as_row(self) -> tuple[str, ...]:
        """Give the cells of its line in a table."""
        value = "-" if self.value is None else format_value(self.value, self.unit)
        target = "" if self.target is None else f"{self.sense} {format_value(self.target, self.unit)}"
        return self.what, value, target, self.describe(), self.detail


def format_value(value: float, unit: Unit) -> str:
    """Write a number with its unit, as in `2.1 %`; shares are given in per cent."""
    if unit == "%":
        return f"{value * 100:.1f} %"
    return f"{value:.3g} {unit}" if unit == "s" and value < 10 else f"{value:.0f} {unit}".rstrip()


def format_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Lay verdicts out as a table."""
    return format_table(("what", "measured", "target", "verdict", ""), [verdict.as_row() for verdict in verdicts])


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay rows out as a Markdown table whose columns are aligned."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def lay_out(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join([lay_out(head), f"|{'|'.join('-' * (width + 2) for width in widths)}|", *map(lay_out, rows)])


def format_rows(rows: Iterable[dict[str, str]]) -> str:
    """Lay rows out as a Markdown table whose titles are the rows' keys; nothing for no rows."""
    listed = list(rows)
    return format_table(tuple(listed[0]), [tuple(row.values()) for row in listed]) if listed else ""


def cover(what: str, held: Sequence[bool], target: float | None) -> Verdict:
    """Say how often an interval held what it should."""
    share = sum(held) / len(held) if held else None
    detail = f"{sum(held)} of {len(held)}"
    return Verdict(what=what, value=share, unit="%", target=target, sense="at least", detail=detail)


def find_median(values: Sequence[float]) -> float | None:
    """Give the median; None of nothing."""
    return statistics.median(values) if values else None


def format_share(value: float | None) -> str:
    """Write a share in per cent, or a dash."""
    return "-" if value is None else format_value(value, "%")


def say_yes(held: bool | None) -> str:
    """Write yes, no, or a dash."""
    return "-" if held is None else "yes" if held else "no"
