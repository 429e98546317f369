"""Output of the benchmarks: lines with the time since the start, and Markdown tables."""

from __future__ import annotations

import time
from collections.abc import Sequence

_started = time.monotonic()


def say(text: str) -> None:
    """Print a line with the time since the start."""
    seconds = int(time.monotonic() - _started)
    print(f"{seconds // 60:3}:{seconds % 60:02}  {text}", flush=True)


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def format_row(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([format_row(head), rule, *map(format_row, rows)])
