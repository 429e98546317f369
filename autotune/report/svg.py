"""The parts that charts are drawn of: scales, axes, marks, rows of bars.

Elements carry classes only; colours and strokes are the stylesheet's, so that one drawing suits light, dark and print.
Texts are escaped by the XML writer. Lengths are in units of the drawing, which is as wide as a phone is: the page
scales it, and its letters stay readable on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from autotune.config import FrozenModel

WIDTH: Final = 420.0
LEFT, RIGHT, TOP, BOTTOM = 68.0, 408.0, 38.0, 250.0  # of the plot within a chart with axes
PLOT_HEIGHT: Final = 296.0
ROW_HEIGHT: Final = 46.0
BAR_HEIGHT: Final = 14.0
NOTE_HEIGHT: Final = 17.0
LETTER: Final = 8.0  # width of a letter, on average, at the size of labels
MAX_TICKS: Final = 6


class Scale(FrozenModel):
    """Places values along one direction of a drawing; those outside are placed at its ends.

    Attributes:
        low: Value at `start`.
        high: Value at `end`, above `low`.
        start: Where it begins.
        end: Where it ends; less than `start` where values grow upwards.
        ticks: Values to be labelled.
        is_logarithmic: Whether equal distances are equal factors; `low` is then greater than 0.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Give the place of a value."""
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def make_scale(high: float, start: float, end: float) -> Scale:
    """Make a scale from 0 to a round number that is at least `high`."""
    step = _choose_step(max(high, 1e-9) / MAX_TICKS)
    ticks = tuple(step * number for number in range(max(1, math.ceil(high / step - 1e-9)) + 1))
    return Scale(low=0, high=ticks[-1], start=start, end=end, ticks=ticks)


def _choose_step(least: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def make_doubling_scale(low: float, high: float, start: float, end: float) -> Scale:
    """Make a logarithmic scale between powers of two around `low` and `high`, both greater than 0."""
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    last = max(last, first + 1)
    stride = math.ceil((last - first) / MAX_TICKS)
    ticks = tuple(2.0**power for power in range(first, last + 1, stride))
    return Scale(low=2.0**first, high=2.0**last, start=start, end=end, ticks=ticks, is_logarithmic=True)


def start_chart(name: str, title: str, description: str, height: float = PLOT_HEIGHT) -> Element:
    """Start a drawing that says what it shows to those who do not see it.

    Args:
        name: Identifies it on its page.
        title: Its accessible name.
        description: What there is to see, in words.
        height: Its height.

    Returns:
        The drawing, with nothing drawn yet.
    """
    chart = Element("svg", {"viewBox": f"0 0 {WIDTH:g} {height:g}", "class": "chart", "role": "img", "id": name})
    chart.set("aria-labelledby", f"{name}-title")
    chart.set("aria-describedby", f"{name}-description")
    draw(chart, "title", title, id=f"{name}-title")
    draw(chart, "desc", description, id=f"{name}-description")
    return chart


def write(chart: Element) -> str:
    """Write a drawing as text for an HTML page."""
    return tostring(chart, encoding="unicode")


def draw(parent: Element, tag: str, text: str | None = None, **attributes: str | float) -> Element:
    """Add an element; underscores in attribute names stand for hyphens, and a last one is left off."""
    named = {name.rstrip("_").replace("_", "-"): _format(value) for name, value in attributes.items()}
    element = SubElement(parent, tag, named)
    element.text = text
    return element


def _format(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def draw_axes(
    chart: Element, across: Scale, up: Scale, labels: tuple[Sequence[str], Sequence[str]], titles: tuple[str, str]
) -> None:
    """Draw two axes with grid lines.

    Args:
        chart: The drawing.
        across: Scale of the horizontal axis.
        up: Scale of the vertical axis.
        labels: Texts for the ticks of both.
        titles: What both show, with units.
    """
    for tick, label in zip(across.ticks, labels[0], strict=True):
        draw(chart, "text", label, class_="tick", x=across.place(tick), y=BOTTOM + 17, text_anchor="middle")
    for tick, label in zip(up.ticks, labels[1], strict=True):
        height = up.place(tick)
        draw(chart, "line", class_="grid", x1=LEFT, x2=RIGHT, y1=height, y2=height)
        draw(chart, "text", label, class_="tick", x=LEFT - 7, y=height + 4, text_anchor="end")
    draw(chart, "line", class_="axis", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM)
    draw(chart, "text", titles[0], class_="axis-title", x=RIGHT, y=BOTTOM + 38, text_anchor="end")
    draw(chart, "text", titles[1], class_="axis-title", x=2, y=12)


def draw_mark(parent: Element, shape: str, x: float, y: float, kind: str, words: str = "") -> None:
    """Draw a mark.

    Args:
        parent: Where it is added.
        shape: `circle`, `square`, `diamond`, `triangle` or `cross`.
        x: Its centre, across.
        y: Its centre, down.
        kind: Its class.
        words: What a pointer resting on it shows.
    """
    if shape == "circle":
        mark = draw(parent, "circle", class_=f"mark {kind}", cx=x, cy=y, r=4)
    else:
        mark = draw(parent, "path", class_=f"mark {kind}", d=_SHAPES[shape], transform=f"translate({x:.1f} {y:.1f})")
    if words:
        draw(mark, "title", words)


def draw_symbol(shape: str, kind: str) -> str:
    """Draw one mark, bar or line by itself, for a legend.

    Args:
        shape: A shape of `draw_mark`, `bar` or `line`.
        kind: Its class.

    Returns:
        The drawing, hidden from those who have it read to them: the words stand beside it.
    """
    symbol = Element("svg", {"viewBox": "0 0 18 14", "aria-hidden": "true"})
    if shape == "bar":
        draw(symbol, "rect", class_=f"bar {kind}", x=2, y=1, width=14, height=12)
    elif shape == "line":
        draw(symbol, "line", class_=kind, x1=0, x2=18, y1=7, y2=7)
    else:
        draw_mark(symbol, shape, 9, 7, kind)
    return write(symbol)


_SHAPES: Final = {
    "square": "M-4.5-4.5h9v9h-9z",
    "diamond": "M0-7L7 0L0 7L-7 0z",
    "triangle": "M0-5L5 4H-5z",
    "cross": "M-4-4L4 4M4-4L-4 4",
}


def draw_interval(parent: Element, x: float, low: float, high: float, kind: str) -> None:
    """Draw an upright interval with a cap at each end."""
    path = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"
    draw(parent, "path", class_=f"interval {kind}", d=path)


def draw_label(parent: Element, text: str, x: float, y: float, kind: str = "") -> None:
    """Write a label beside a point, on the side where there is room."""
    is_right = x + 12 + LETTER * len(text) <= RIGHT
    anchor, place = ("start", x + 11) if is_right else ("end", x - 11)
    draw(parent, "text", text, class_=f"label {kind}".strip(), x=place, y=y, text_anchor=anchor)


class Bar(FrozenModel):
    """One piece of a bar: its length in the unit of the scale, its class, and what a pointer resting on it shows."""

    length: float
    kind: str
    words: str = ""


class Row(FrozenModel):
    """One row of a bar chart.

    Attributes:
        label: What the row is.
        value: Its value in words.
        bars: Pieces, from left to right.
        note: Further words below the bar; may be empty.
    """

    label: str
    value: str
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def height(self) -> float:
        """Room that it takes."""
        return ROW_HEIGHT + (NOTE_HEIGHT if self.note else 0)


def draw_rows(name: str, title: str, description: str, rows: Sequence[Row]) -> str:
    """Draw a chart of horizontal bars, each with its own words above it, so that no axis is needed.

    Args:
        name: Identifies it on its page.
        title: Its accessible name.
        description: What there is to see, in words.
        rows: From top to bottom.

    Returns:
        The drawing as text.
    """
    longest = max(sum(bar.length for bar in row.bars) for row in rows)
    scale = Scale(low=0, high=max(longest, 1e-12), start=0, end=WIDTH, ticks=())
    chart = start_chart(name, title, description, height=sum(row.height for row in rows))
    top = 0.0
    for row in rows:
        _draw_row(chart, row, scale, top)
        top += row.height
    return write(chart)


def _draw_row(chart: Element, row: Row, scale: Scale, top: float) -> None:
    room = int((WIDTH - LETTER * len(row.value)) / LETTER) - 2
    draw(chart, "text", shorten(row.label, room), class_="row", x=0, y=top + 14)
    draw(chart, "text", row.value, class_="row value", x=WIDTH, y=top + 14, text_anchor="end")
    left = 0.0
    for bar in row.bars:
        width = scale.place(bar.length)
        shape = draw(chart, "rect", class_=bar.kind, x=left, y=top + 20, width=width, height=BAR_HEIGHT)
        if bar.words:
            draw(shape, "title", bar.words)
        left += width
    if row.note:
        draw(chart, "text", row.note, class_="note", x=0, y=top + 20 + BAR_HEIGHT + 15)


def shorten(text: str, most: int) -> str:
    """Cut a text that is longer than `most` letters, and show that it was cut."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"
