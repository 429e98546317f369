"""What ends a run: which settings, how much faster, what else would help, and the line to paste, in few lines.

A terminal shows the end of what was written, so the line to paste stands last, and what else there is to know is left
to `dltune show` where it would push the answer out of sight.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from typing import Final

from autotune.config import LoaderConfig
from autotune.profiles.schema import TunedProfile
from autotune.report.text import (
    describe_best,
    describe_bound,
    describe_numbers,
    list_advice,
    list_gains,
    list_notes,
    list_peaks,
    list_ranks,
)
from autotune.report.usage import describe_use_in_code
from autotune.settings import describe_config
from autotune.units import format_rate

MAX_LINES: Final = 15
WIDTH: Final = 100  # columns, where there is no terminal that has a width
DEFAULT_FILE: Final = "dltune.json"  # which commands read by themselves


def describe_outcome(
    profile: TunedProfile,
    kind: str,
    runner_up: LoaderConfig | None,
    output: str,
    *,
    interrupted: bool,
    width: int = WIDTH,
) -> str:
    """Write the summary that ends a run.

    Args:
        profile: The answer.
        kind: Of its dataset, `map` or `iterable`.
        runner_up: A faster configuration passed over for a smaller one.
        output: The file that was written.
        interrupted: Whether the run was cut short.
        width: Columns; all lines but the one to paste are folded to them.

    Returns:
        At most `MAX_LINES` lines, unless what must be said takes more; the last one is to be pasted.
    """
    head = [describe_best(profile), f"  {describe_numbers(profile.result)}", f"  {describe_bound(profile.result)}"]
    head += list_ranks(profile)
    if runner_up is not None:
        head.append(f"  {describe_config(runner_up)} was faster within noise; the one that costs less was chosen")
    if interrupted:
        rounds = profile.result.validation_runs
        state = f"confirmed in {rounds} rounds" if rounds else "not confirmed"
        head.append(f"  cut short: this is the best so far, {state}; run the same command again to continue")
    shown = fold_all(head, width)
    room = MAX_LINES - len(shown) - len(_list_end(profile, kind, output, 0, width))
    told, left = _choose(profile, room, width)
    return "\n".join([*shown, *told, *_list_end(profile, kind, output, left, width)])


def describe_standing(profile: TunedProfile, output: str, samples_per_second: float, *, width: int = WIDTH) -> str:
    """Write that an earlier answer holds: what it reaches now beside what it promised."""
    promised = format_rate(profile.result.samples_per_second)
    lines = [
        describe_best(profile),
        f"  tuned {profile.created_at:%Y-%m-%d}, still holds: {format_rate(samples_per_second)} now, {promised} then"
        "; --afresh searches again",
        f"Profile {profile.name} of {output} stays as it is.   {_point_to_more(output, 0)}",
    ]
    return "\n".join([*fold_all(lines, width), *_list_use(profile, profile.workload.kind or "map", output)])


def _choose(profile: TunedProfile, room: int, width: int) -> tuple[list[str], int]:
    """Choose what is told in so many lines, the most needed first; count the advice and notes that are left out."""
    advice, notes = list_advice(profile), list_notes(profile)
    rest = [*list_gains(profile.result), *list_peaks(profile)]
    chosen = set()
    for line in (*advice[:1], *notes, *advice[1:], *rest):
        if (lines := len(fold(line, width))) <= room:
            room -= lines
            chosen.add(line)
    told = fold_all((line for line in (*rest, *advice, *notes) if line in chosen), width)
    return told, sum(line not in chosen for line in (*advice, *notes))


def _list_end(profile: TunedProfile, kind: str, output: str, left: int, width: int) -> list[str]:
    wrote = f"Wrote {output} (profile {profile.name}).   {_point_to_more(output, left)}"
    return [*fold(wrote, width), *_list_use(profile, kind, output)]


def _point_to_more(output: str, left: int) -> str:
    """Name the commands that tell the rest, of which so many notes were left out."""
    file = "" if output == DEFAULT_FILE else f" {shlex.quote(output)}"
    more = f"{left} more note{'s' if left > 1 else ''}" if left else "All of it"
    return f"{more}: dltune show{file}   Charts: dltune report{file}"


def _list_use(profile: TunedProfile, kind: str, output: str) -> list[str]:
    """Give the line to paste as it is, behind what it is: a broken line could not be pasted."""
    return ["Training code, after import autotune:", f"  loader = {describe_use_in_code(profile, kind, output)}"]


def fold_all(lines: Iterable[str], width: int) -> list[str]:
    """Fold each line."""
    return [row for line in lines for row in fold(line, width)]


def fold(line: str, width: int) -> list[str]:
    """Break a line where three spaces separate its parts, and a part that is still too long between words."""
    text = line.lstrip()
    first = " " * (len(line) - len(text))
    rows: list[str] = []
    for part in re.split(r" {3}", text):
        joined = f"{rows[-1]}   {part}" if rows else first + part
        if not rows or len(joined) <= width:
            rows[-1:] = [joined]
        else:
            rows.append(f"{first}    {part}")
    return [cut for row in rows for cut in _cut(row, width, f"{first}    ")]


def _cut(row: str, width: int, indent: str) -> list[str]:
    start = row[: len(row) - len(row.lstrip())]
    return textwrap.wrap(
        row.lstrip(),
        width,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
