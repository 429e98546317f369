from __future__ import annotations

import math
from contextlib import suppress
from operator import add

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.units import (
    BYTE_UNITS,
    SECOND_UNITS,
    format_bytes,
    format_rate,
    format_seconds,
    parse_budget,
    parse_seconds,
)

NUMBERS = st.from_regex(r"[0-9]{1,400}(\.[0-9]{1,5})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "count"),
    [("24GiB", 24 * 2**30), ("24 gb", 24 * 10**9), ("1.5MiB", 3 * 2**19), (".5k", 500), (" 10 ", 10), ("1.9", 1)],
)
def test_bytes_are_read_with_binary_and_decimal_units_and_rounded_down(text: str, count: int) -> None:
    assert parse_budget(text, 0) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e3", "1.GiB", "24 elephants", "1,5G", "nan", "inf", "0x10", "1 2"])
def test_what_is_not_an_amount_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="24GiB"):
        parse_budget(text, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("35ms", 0.035), ("250us", 250e-6), ("3s", 3.0), ("10m", 600.0), ("1.5h", 5400.0), ("1d", 86400.0)],
)
def test_durations_are_read_in_their_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "35", "0ms", "-3s", "3 weeks", "", "1:30"])
def test_a_duration_without_unit_or_not_longer_than_zero_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"longer than zero|35ms"):
        parse_seconds(text)


@given(text=st.text() | st.builds(add, NUMBERS, st.sampled_from([*BYTE_UNITS, *SECOND_UNITS, "%"])))
@example(text="9" * 400)
def test_any_text_is_parsed_or_rejected_by_a_value_error(text: str) -> None:
    for parse in (parse_seconds, lambda text: parse_budget(text, 2**40)):
        with suppress(ValueError):
            assert 0 <= parse(text) < math.inf


@given(st.integers(0, 2**60))
def test_formatted_bytes_read_back_within_half_of_their_last_digit(count: int) -> None:
    text = format_bytes(count)
    unit = BYTE_UNITS[text.split()[1].lower()]
    digits = len(text.split()[0].partition(".")[2])
    assert abs(parse_budget(text, 0) - count) <= unit * 0.5 * 10**-digits + 1


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1000 * 2**20, "1.0 GiB"), (5000 * 2**40, "5000 TiB")],
)
def test_bytes_are_written_in_the_unit_that_suits_them(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.floats(60, 172_000))
def test_long_durations_are_written_with_rests_below_sixty(seconds: float) -> None:
    text = format_seconds(seconds)
    separator, large, small = ("h", 3600, 60) if "h" in text else ("m", 60, 1)
    whole, rest = (int(part) for part in text.split(separator))
    assert rest < 60
    assert abs(whole * large + rest * small - seconds) <= small


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((25e-6, "25 us"), (0.0079, "7.9 ms"), (3.2, "3.2 s"), (192, "3m12"), (3599.7, "1h00"), (3456e3, "40 days")),
        *((0.9997e-3, "1.0 ms"), (0.99997, "1.0 s"), (59.97, "1m00")),
    ],
)
def test_durations_are_written_in_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(percent=st.integers(1, 100), whole=st.integers(0, 2**50))
def test_a_share_is_taken_of_the_whole_and_never_exceeds_it(percent: int, whole: int) -> None:
    budget = parse_budget(f"{percent}%", whole)
    assert budget <= whole
    assert abs(budget - whole * percent / 100) < 1 + whole * 1e-12


@pytest.mark.parametrize("text", ["0%", "101%", "%", "-5%", "5%%", "8GiB%"])
def test_a_share_outside_of_0_to_100_percent_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="%"):
        parse_budget(text, 1000)


@pytest.mark.parametrize(
    ("rate", "text"), [(0.5, "0.5"), (0.0041, "0.0041"), (12.34, "12.3"), (99.0, "99.0"), (1811.4, "1,811")]
)
def test_rates_keep_three_digits_and_group_thousands(rate: float, text: str) -> None:
    assert format_rate(rate) == text
