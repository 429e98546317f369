"""What a child may say, and what a record may hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autotune.config import MAX_TEXT_LENGTH
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import FailureReport
from tests.builders import make_trace


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_seconds": (0.2, 0.1)}, "must ascend"),
        ({"end_seconds": 0.1}, "before its last batch"),
        ({"closed_after": 3}, "more batches than it has"),
        ({"end_seconds": 1e10}, "less than or equal to"),
        ({"wait_seconds": float("nan")}, "less than or equal to"),
        ({"samples": 2**63}, "less than or equal to"),
    ],
)
def test_an_epoch_that_no_clock_can_have_shown_is_refused(changes: dict[str, Any], words: str) -> None:
    trace = make_trace([0.1, 0.1])
    with pytest.raises(ValidationError, match=words):
        type(trace).model_validate(trace.model_dump() | changes)


@pytest.mark.parametrize(("changes", "words"), [({"samples": 0}, "no sample"), ({"end_seconds": 0.0}, "take no time")])
def test_a_measurement_of_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    trace = make_trace([0.0]).model_dump() | changes
    document = {"epochs": [trace | {"batch_seconds": []}], "epoch_batches": 1, "stopped": "done"}
    with pytest.raises(ValidationError, match=words):
        Measurement.model_validate(document)


def test_a_text_that_nobody_would_read_is_cut_in_the_middle() -> None:
    words = FailureReport(where="trial", error="start" + "x" * 10**6 + "end").error
    assert len(words) < MAX_TEXT_LENGTH + 100
    assert words.startswith("start")
    assert words.endswith("end")
    assert "980,008 characters omitted" in words


def test_a_traceback_is_kept_whole() -> None:
    assert FailureReport(where="trial", error="", details="x" * MAX_TEXT_LENGTH).details == "x" * MAX_TEXT_LENGTH
