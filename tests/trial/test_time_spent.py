"""Where the time of a run goes: every second is on one activity of one phase."""

from __future__ import annotations

import itertools

import pytest

from autotune.trial.time_spent import TimeSpent


def test_every_second_is_counted_once_by_phase_and_activity() -> None:
    spent = TimeSpent(clock=itertools.count().__next__)
    with spent.on("starting"):  # a second before, one within
        pass
    spent.begin("search")  # a second of its own until here
    with spent.on("warming_up"):
        spent.turn_to("measuring")
    assert spent.sum_up() == {
        "probe": {"own": 2.0, "starting": 1.0},
        "search": {"own": 2.0, "warming_up": 1.0, "measuring": 1.0},
    }


def test_what_fails_is_counted_too() -> None:
    spent = TimeSpent(clock=itertools.count().__next__)
    with pytest.raises(OSError, match="gone"), spent.on("starting"):
        raise OSError("gone")
    assert spent.sum_up() == {"probe": {"own": 2.0, "starting": 1.0}}
