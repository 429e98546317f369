from __future__ import annotations

from typing import Any

import pytest

from autotune.child.ranks import join_answers
from autotune.protocol.measurement import RankWaits
from autotune.protocol.messages import FailureReport, LostRankReport, ReadyReport, Report, TrialReport
from tests.builders import make_measurement_of

READY = ReadyReport()
LOST = LostRankReport(rank=1, status=-9)


def fail(where: str = "dataset", error: str = "ValueError: bad") -> FailureReport:
    return FailureReport(where=where, error=error)


IN_VAIN = fail("ranks", "connection closed by peer")


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({0: READY, 1: READY}, READY),
        ({0: fail(), 1: fail()}, fail()),
        ({0: fail()}, fail().model_copy(update={"rank": 0})),
        ({0: IN_VAIN, 1: fail()}, fail().model_copy(update={"rank": 1})),
        ({0: IN_VAIN, 1: LOST}, LOST),
        ({1: LOST, 0: fail()}, LOST),
        ({0: IN_VAIN}, IN_VAIN),
    ],
)
def test_one_answer_is_made_of_those_of_two_ranks(answers: dict[int, Report], told: Report) -> None:
    assert join_answers(answers, 2) == told


def measure(wait: float, gpu_bytes: int) -> TrialReport:
    waits = tuple(RankWaits(wait_seconds=seconds, steps=9, late_steps=3) for seconds in (1.0, 2.0))
    measurement = make_measurement_of(100.0, wait_share=wait)
    return TrialReport(measurement=measurement.model_copy(update={"ranks": waits, "peak_gpu_bytes": gpu_bytes}))


def test_the_measurement_is_that_of_the_rank_that_waited_most_with_what_all_delivered() -> None:
    told: Any = join_answers({1: measure(0.4, 1), 0: measure(0.2, 7)}, 2)
    found = told.measurement
    assert found.epochs[0].wait_seconds == pytest.approx(4.0)
    assert ([rank.samples for rank in found.ranks], found.peak_gpu_bytes) == ([1000, 1000], 7)
