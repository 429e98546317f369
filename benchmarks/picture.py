"""Draws the terminal in the README from what a run really wrote; nothing in the picture is made up.

The run is kept in docs/images/terminal.txt: a line with the command behind `$ `, then all that it wrote, as by

    (echo '$ dltune --dataset ...'; dltune --dataset ... 2>&1) > docs/images/terminal.txt
    python -m benchmarks.picture

Where many lines begin with the same word, those in the middle are left out, and three dots say so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

FOLDER: Final = Path(__file__).parent.parent / "docs" / "images"
LEFT_OUT: Final = "..."
KEPT: Final = {"trial": (3, 2), "confirm": (2, 2)}  # lines at the beginning and at the end of those with that word
COLUMNS: Final = 112
INDENT: Final = "    "  # of what did not fit on a line
LETTER_WIDTH: Final = 7.8
LINE_HEIGHT: Final = 18
MARGIN: Final = 18
BAR: Final = 34  # height of the window's bar
STYLE: Final = """
.window { fill: #0d1117; stroke: #8b949e; }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #e6edf3; }
.command, .answer { fill: #7ee787; font-weight: bold; }
.label { fill: #79c0ff; }
.left-out { fill: #8b949e; }
"""  # a window of its own colours, so that it suits light pages and dark ones


def shorten(lines: Iterable[str]) -> Iterator[str]:
    """Leave out the middle of many lines that begin with the same word; three dots say so."""
    for word, group in groupby(lines, key=find_word):
        same = list(group)
        head, tail = KEPT.get(word, (len(same), 0))
        if len(same) <= head + tail + 1:
            yield from same
        else:
            yield from (*same[:head], LEFT_OUT, *same[len(same) - tail :])


def find_word(line: str) -> str:
    """Give the word that a line begins with; empty for one that is indented."""
    found = re.match(r"\w+", line)
    return found[0] if found else ""


def wrap(line: str) -> list[str]:
    """Break a line as a terminal of so many columns would, at spaces."""
    return textwrap.wrap(line, COLUMNS, subsequent_indent=INDENT, drop_whitespace=True, break_on_hyphens=False) or [""]


def classify(line: str) -> str:
    """Tell how a line is coloured."""
    if line.startswith("$ "):
        return "command"
    if line == LEFT_OUT:
        return "left-out"
    return "answer" if re.match(r"(Best|Keep):", line) else ""


def draw(lines: Iterable[str]) -> str:
    """Draw a terminal that shows lines of any length, as SVG that loads nothing."""
    shown = [(part, classify(line)) for line in lines for part in wrap(line)]
    width = 2 * MARGIN + COLUMNS * LETTER_WIDTH
    height = BAR + MARGIN + len(shown) * LINE_HEIGHT
    picture = Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height}", "role": "img"}
    )
    SubElement(picture, "style").text = STYLE
    SubElement(
        picture,
        "rect",
        {"class": "window", "x": "0.5", "y": "0.5", "width": f"{width - 1:g}", "height": f"{height - 1}", "rx": "8"},
    )
    for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        SubElement(picture, "circle", {"cx": f"{MARGIN + 20 * number}", "cy": "17", "r": "6", "fill": colour})
    for number, (text, kind) in enumerate(shown):
        _write_line(picture, text, kind, BAR + LINE_HEIGHT * (number + 0.7))
    return tostring(picture, encoding="unicode") + "\n"


def _write_line(picture: Element, text: str, kind: str, y: float) -> None:
    stripped = text.lstrip()
    x = MARGIN + LETTER_WIDTH * (len(text) - len(stripped))
    place = {"x": f"{x:g}", "y": f"{y:g}", "textLength": f"{LETTER_WIDTH * len(stripped):.1f}", "xml:space": "preserve"}
    line = SubElement(picture, "text", place | ({"class": kind} if kind else {}))
    word = find_word(text) if not kind else ""
    if word and text[len(word) :].startswith(" "):
        SubElement(line, "tspan", {"class": "label"}).text = word
        line[0].tail = stripped[len(word) :]
    else:
        line.text = stripped


def main() -> None:
    """Draw the picture of the run that is kept."""
    text = (FOLDER / "terminal.txt").read_text(encoding="utf-8")
    (FOLDER / "terminal.svg").write_text(draw(shorten(text.splitlines())), encoding="utf-8")


if __name__ == "__main__":
    main()
