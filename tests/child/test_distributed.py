"""Several ranks, with a list in place of communication; tests/runner/test_ranks.py uses real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from autotune.child.distributed import RankSync, merge_reports
from autotune.protocol.measurement import RankWaits, StopReason
from autotune.protocol.messages import FailureReport, LostRankReport, ReadyReport, Report, TrialReport
from tests.builders import make_measurement_of
from tests.child.test_device import run_steps

STEP, STOP = (0.0, 0.0, 0.0), (0.0, 1.0, 0.0)  # no batch is missing; no vote, or one to stop


class Rank(RankSync):
    """One of two ranks, with a list of what the other rank contributes."""

    def __init__(self, rank: int, others: Iterator[tuple[float, ...]]) -> None:
        self._others = others
        super().__init__(rank, 2)
        self.start_epoch()

    def _sum(self, values: list[float]) -> list[float]:
        return [own + other for own, other in zip(values, next(self._others), strict=True)]


def run_epoch(steps: int, waits: list[float], others: list[float]) -> tuple[RankSync, float]:
    """Run an epoch in rank 0; return the waits at which both ranks arrive together."""
    seconds = [wait for pair in zip([0.0] * steps, others, strict=True) for wait in pair]
    rank = Rank(0, iter([STEP] * steps + [(1.0, 0.0, 0.0), tuple(seconds)]))
    assert all(rank.sync_step() for _ in range(steps))
    assert not rank.sync_step()  # the other rank has no batch left
    return rank, rank.end_epoch(waits)


def test_a_step_takes_as_long_as_its_longest_wait_and_one_without_a_batch_is_not_counted() -> None:
    rank, waited = run_epoch(3, [0.2, 0.4, 0.3, 9.0], [0.5, 0.1, 0.3005])
    own, other = rank.read_waits()
    assert own.steps == 3
    assert [own.wait_seconds, other.wait_seconds] == pytest.approx([0.9, 0.9005])
    assert waited == pytest.approx(0.5 + 0.4 + 0.3005)


def test_a_host_that_waits_for_a_batch_while_its_device_has_work_does_not_count_as_waiting() -> None:
    stream, timer = run_steps([0.0, 0.9, 1.8, 2.7])  # the host waits 0.9 s for each batch, a step takes 1 s
    stream.host = stream.busy_until
    timer.read()
    rank, waited = run_epoch(4, timer.waits, [0.0] * 4)
    assert waited == rank.read_waits()[0].wait_seconds == 0.0


def test_all_ranks_follow_a_decision_of_rank_0_after_the_next_step() -> None:
    first = Rank(0, iter([STEP] * 2))
    assert not first.decide("stop", lambda: True)
    first.sync_step()
    assert first.decide("stop", lambda: False)
    second = Rank(1, iter([STOP, STEP]))
    second.sync_step()
    assert second.decide("stop", lambda: False)
    assert not second.decide("abandon", lambda: True)
    second.sync_step()
    assert not second.decide("stop", lambda: True)  # only rank 0 decides


@pytest.mark.parametrize(("plan", "code"), [(1 << 62, 2.0**62), (12, 12.0), ("done", -1.0), ("time", -4.0)])
def test_all_ranks_follow_the_plan_of_rank_0(plan: int | StopReason, code: float) -> None:
    assert Rank(0, iter([(0.0,)])).agree(lambda: plan) == plan
    assert Rank(1, iter([(code,)])).agree(lambda: 7) == plan


def test_a_single_process_decides_at_once_and_waits_for_nobody() -> None:
    alone = RankSync()
    assert alone.sync_step()
    assert alone.decide("stop", lambda: True)
    assert alone.agree(lambda: "time") == "time"
    assert (alone.end_epoch([0.1]), alone.read_waits()) == (0.0, ())


READY, LOST = ReadyReport(), LostRankReport(rank=1, status=-9)
PEER_LOST = FailureReport(stage="ranks", error="connection closed by peer")
FAILED = FailureReport(stage="dataset", error="ValueError: bad")


@pytest.mark.parametrize(
    ("reports", "merged"),
    [
        ({0: READY, 1: READY}, READY),
        ({0: FAILED, 1: FAILED}, FAILED),
        ({0: FAILED}, FAILED.model_copy(update={"rank": 0})),
        ({0: PEER_LOST, 1: FAILED}, FAILED.model_copy(update={"rank": 1})),
        ({0: PEER_LOST, 1: LOST}, LOST),
        ({1: LOST, 0: FAILED}, LOST),
        ({0: PEER_LOST}, PEER_LOST),
    ],
)
def test_the_reports_of_two_ranks_are_merged(reports: dict[int, Report], merged: Report) -> None:
    assert merge_reports(reports, 2) == merged


def measure(wait_share: float, gpu_bytes: int) -> TrialReport:
    waits = tuple(RankWaits(wait_seconds=seconds, steps=9) for seconds in (1.0, 2.0))
    measurement = make_measurement_of(100.0, wait_share=wait_share)
    return TrialReport(measurement=measurement.model_copy(update={"ranks": waits, "peak_gpu_bytes": gpu_bytes}))


def test_the_measurement_is_that_of_the_rank_that_waited_most_with_the_samples_of_all() -> None:
    report: Any = merge_reports({1: measure(0.4, 1), 0: measure(0.2, 7)}, 2)
    merged = report.measurement
    assert merged.epochs[0].wait_seconds == pytest.approx(4.0)
    assert ([rank.samples for rank in merged.ranks], merged.peak_gpu_bytes) == ([1000, 1000], 7)


@pytest.mark.parametrize(("known", "batches", "samples"), [(7000, 80, 7000), (None, 80, 8000), (None, None, 0)])
def test_the_samples_of_an_epoch_that_ended_early_are_known_or_those_of_its_batches(
    known: int | None, batches: int | None, samples: int
) -> None:
    measured = measure(0.4, 1).measurement
    epochs = (measured.epochs[0].model_copy(update={"closed_after": 10}),)
    changes = {"epochs": epochs, "epoch_samples": known, "epoch_batches": batches}
    report = TrialReport(measurement=measured.model_copy(update=changes))
    merged: Any = merge_reports({0: report, 1: report}, 2)
    assert [rank.samples for rank in merged.measurement.ranks] == [samples, samples]
