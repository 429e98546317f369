"""Keeping step, with a list in place of the exchange; tests/runner/test_ranks.py has real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.child.distributed import Alone, Lockstep


class Rank(Lockstep):
    """One rank of two; what the other one tells at each exchange stands in a list, and the clock moves by hand."""

    def __init__(self, rank: int, others: Iterator[tuple[float, bool, float]]) -> None:
        self.clock = 0.0
        self._others = others
        super().__init__(rank, 2, lambda: self.clock)

    def _gather(self, own: tuple[float, ...]) -> list[list[float]]:
        other = [float(value) for value in next(self._others)]
        return [list(own), other] if self._rank == 0 else [other, list(own)]

    def get_batch(self, seconds: float) -> bool:
        self.ask()
        self.clock += seconds
        self.arrive()
        return self.exchange()


def test_the_rank_that_waits_longest_is_late() -> None:
    rank = Rank(0, iter([(0.5, True, 0.0), (0.1, True, 0.0), (0.3005, True, 0.0)]))
    for seconds in (0.2, 0.4, 0.3):
        assert rank.get_batch(seconds)
    own, other = rank.read_waits()
    assert (own.late_steps, other.late_steps, own.steps) == (1, 1, 3)  # half a millisecond is nobody's lag
    assert [own.wait_seconds, other.wait_seconds] == pytest.approx([0.9, 0.9005])


def test_an_exchange_tells_that_a_rank_has_no_batch_and_counts_no_step() -> None:
    rank = Rank(0, iter([(0.0, False, 0.0)]))
    assert not rank.get_batch(0.2)
    assert rank.read_waits()[0].steps == 0


def test_what_rank_0_decides_holds_for_all_from_the_next_exchange_on() -> None:
    first = Rank(0, iter([(0.0, True, 0.0)] * 2))
    assert not first.decide("stop", lambda: True)
    first.get_batch(0.1)
    assert first.decide("stop", lambda: False)
    second = Rank(1, iter([(0.0, True, 1.0), (0.0, True, 0.0)]))
    second.get_batch(0.1)
    assert second.decide("stop", lambda: False)
    assert not second.decide("abandon", lambda: True)
    second.get_batch(0.1)
    assert not second.decide("stop", lambda: True)  # that is for rank 0 to say


def test_a_process_alone_decides_by_itself_and_waits_for_nobody() -> None:
    alone = Alone()
    assert alone.exchange()
    assert alone.decide("stop", lambda: True)
    assert alone.agree(lambda: "time") == "time"
    assert alone.read_waits() == ()
