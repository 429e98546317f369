"""Strategies that damage a valid JSON document, as an attacker or a broken disk does."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

from hypothesis import strategies as st

TRAP = "trapped_module"  # no file may have it imported
DEEP = 400

NUMBERS = (
    *(0, 1, -1, 2, 3, 4096, 4097, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-9, 1e-300, 5e-324, 1e9, 1e18, 1e30, 1.7e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
TEXTS = (
    *("", " ", "0", "1e999", "NaN", "null", "fork", "file_system", "spawn", "a" * 5000, "é" * 100, "\x00", "\u202e"),
    *("\x1b]0;owned\x07\x1b[2J", "../../etc/passwd", f"{TRAP}:fire", f"{TRAP}.fire", "os:system", "{0.__class__}"),
    *("2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "%s%n", "{}", "'; DROP TABLE"),
    *("gASVHwAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjARleGl0lIWUUpQu", "!!python/object/apply:os.system ['exit']"),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [1, 2], {"a": 1}),
    *({"$ref": "#"}, {"__reduce__": ["os.system", ["exit"]]}),
)
RAW = (  # unusual tokens for a parser
    *("1e999", "-1e999", "1" + "0" * 5000, "0x10", "+1", ".5", "1.", "01", "NaN", "Infinity", "-Infinity", "undefined"),
    *("'a'", '"\\ud800"', '"\\u0000"', '"\\x41"', '"\t"', '"', "", "[", "}", "true false", "//", "/* */ 1"),
    *("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, '"\\ud83d\\ude00"', "null"),
)
CODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp500", "utf-7")
_SCALARS = re.compile(r'(?<=[:\[,] )(?:"[^"]*"|[\w.+-]+)|(?<=\[)(?:"[^"]*"|[\w.+-]+)')

VALUES = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(OTHERS),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=10),
)
LEGAL = st.one_of(
    st.sampled_from((0, 1, 2, 16, 4096, 2**31 - 1, 2**63 - 1)),
    st.sampled_from((0.0, 1e-9, 1e-300, 5e-324, 0.5, 1e9, 1e18, 1e30, 1e200)),
    st.integers(0, 2**63 - 1),
    st.floats(0, 1e9),
)  # numbers that are valid in many fields, if not together


def list_places(document: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a JSON document."""
    yield place
    values = dict(enumerate(document)) if isinstance(document, list) else document
    for key, value in values.items() if isinstance(values, dict) else ():
        yield from list_places(value, (*place, key))


def _mutate(document: Any, place: tuple[Any, ...], value: Any, how: str) -> None:
    try:
        for step in place[:-1]:
            document = document[step]
        if how == "remove":
            del document[place[-1]]
        elif how == "add":
            document[str(value)[:20]] = value
        elif how == "wrap":
            document[place[-1]] = [document[place[-1]]]
        elif how == "retype":
            document[place[-1]] = str(document[place[-1]])
        elif how == "repeat":
            document[place[-1]] = document[place[-1]] * 3
        else:
            document[place[-1]] = value
    except (KeyError, IndexError, TypeError):
        return  # an earlier mutation took this place away


@st.composite
def _draw_changed(
    draw: st.DrawFn, text: str, places: list[tuple[Any, ...]], values: st.SearchStrategy[Any], hows: tuple[str, ...]
) -> str:
    """Change a few places of a valid document, which stays JSON."""
    document = json.loads(text)
    for _ in range(draw(st.integers(1, 4))):
        _mutate(document, draw(st.sampled_from(places)), copy.deepcopy(draw(values)), draw(st.sampled_from(hows)))
    return json.dumps(document)


@st.composite
def _draw_torn(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """Encode a text, and then remove, add or change bytes of it."""
    data = draw(texts).encode(draw(st.sampled_from(CODINGS)), errors="replace")
    start = draw(st.integers(0, len(data)))
    return data[:start] + draw(st.binary(max_size=20)) + data[start + draw(st.integers(0, 200)) :]


def draw_texts(text: str) -> st.SearchStrategy[str]:
    """Draw texts that a valid JSON document may turn into: other values, other tokens, or a key twice."""
    document = json.loads(text)
    text = json.dumps(document)
    places = list(list_places(document))[1:]
    numbers = [place for place in places if type(reduce(getitem, place, document)) in (int, float)]
    hows = ("replace", "replace", "replace", "remove", "add", "wrap", "retype", "repeat")
    spans = st.sampled_from([match.span() for match in _SCALARS.finditer(text)])
    keys = st.sampled_from([str(place[-1]) for place in places if isinstance(place[-1], str)])
    raw = st.builds(lambda span, token: text[: span[0]] + token + text[span[1] :], spans, st.sampled_from(RAW))
    doubled = st.builds(
        lambda key, token: text.replace(f'"{key}": ', f'"{key}": {token}, "{key}": ', 1), keys, st.sampled_from(RAW)
    )
    kinds = [_draw_changed(text, places, VALUES, hows), raw, doubled]
    return st.one_of([*kinds, *[_draw_changed(text, numbers, LEGAL, ("replace",))] * 3] if numbers else kinds)


def draw_files(text: str) -> st.SearchStrategy[bytes]:
    """Draw the bytes of a file that held a JSON document."""
    texts = draw_texts(text)
    encoded = texts.map(lambda text: text.encode(errors="surrogatepass"))
    return st.one_of(encoded, encoded, _draw_torn(texts), st.binary(max_size=200), st.just(b""))
