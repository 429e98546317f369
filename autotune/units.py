"""Parsing and formatting of quantities with units. Parsers raise ValueError."""

from __future__ import annotations

import math
import re
from typing import Final

BYTE_UNITS: Final = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", 1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
SECOND_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*")


def _split_quantity(text: str, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    if not math.isfinite(quantity := float(match[1]) * units[match[2].lower()]):
        raise ValueError(f"{text[:20]!r}... is too large a number")
    return quantity


def parse_seconds(text: str) -> float:
    """Parse a positive duration in `us`, `ms`, `s`, `m`, `h` or `d`; return seconds."""
    seconds = _split_quantity(text, SECOND_UNITS, "a duration with its unit, such as 35ms, 3s, 10m or 30d")
    if seconds <= 0:
        raise ValueError(f"{text!r} must be longer than zero")
    return seconds


def parse_budget(text: str, whole: int) -> int:
    """Parse an amount of memory in bytes, such as `24GiB`, `24GB` or `24G`, or a percentage of `whole` bytes."""
    if not text.strip().endswith("%"):
        return int(_split_quantity(text, BYTE_UNITS, "an amount such as 24GiB, 512MB or 1000000"))
    percent = _split_quantity(text.strip()[:-1], {"": 1}, "a share such as 80%")
    if not 0 < percent <= 100:
        raise ValueError(f"{text!r} must be more than 0% and at most 100%")
    return int(whole * percent / 100)


def format_bytes(count: float) -> str:
    """Write bytes with a binary unit and three significant digits, as in `38.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000 or (unit == "B" and abs(count) < 1024):
            break
        count /= 1024
    else:
        unit = "TiB"
    return f"{count:.{0 if unit == 'B' or abs(count) >= 100 else 1}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration in a suitable unit, as in `7.9 ms`, `3.2 s`, `3m12` or `40 days`."""
    if seconds < 0.99995:  # below what becomes 1000.0 ms
        return f"{seconds * 1e6:.0f} us" if seconds < 0.9995e-3 else f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}"
    return f"{minutes // 60}h{minutes % 60:02d}" if minutes < 48 * 60 else f"{minutes / 24 / 60:.0f} days"


def format_rate(per_second: float) -> str:
    """Write samples or batches per second with at least three significant digits, as in `1,811`."""
    if per_second < 0.995:
        return f"{per_second:.3g}"
    return f"{per_second:,.{2 if per_second < 9.995 else 1 if per_second < 99.95 else 0}f}"


def format_count(count: int, noun: str) -> str:
    """Write a number of things, as in `1 trial` or `12,000 samples`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
