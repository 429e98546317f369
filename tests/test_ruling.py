from __future__ import annotations

import pytest

from autotune.messages import TrialKind, TrialResult
from autotune.ruling import WorkerRuling
from autotune.schema import LoaderConfig
from tests.builders import make_config

CANDIDATES = [make_config(0), make_config(8), make_config(2), make_config(1)]


class Tries:
    """Answers every trial with one kind, and remembers what was tried."""

    def __init__(self, kind: TrialKind) -> None:
        self.kind = kind
        self.configs: list[LoaderConfig] = []

    def __call__(self, config: LoaderConfig) -> TrialResult:
        self.configs.append(config)
        return fail(config, self.kind)


def fail(config: LoaderConfig, kind: TrialKind) -> TrialResult:
    return TrialResult(kind=kind, config=config, message="raised KeyError: 'handle'")


@pytest.mark.parametrize("kind", ["workload_failed", "crashed", "stalled"])
def test_code_that_fails_with_one_worker_as_well_rules_workers_out_and_says_why(kind: TrialKind) -> None:
    tries = Tries(kind)
    ruling = WorkerRuling(CANDIDATES, tries)
    ruling.judge(fail(make_config(8), kind))
    assert tries.configs == [make_config(1)]
    assert ruling.applies_to(make_config(2))
    assert not ruling.applies_to(make_config(0))
    assert ruling.reason is not None
    assert "without them the dataset works" in ruling.reason
    assert "KeyError: 'handle'" in ruling.reason


def test_a_failure_that_one_worker_does_not_show_is_about_the_configuration() -> None:
    ruling = WorkerRuling(CANDIDATES, Tries("completed"))
    ruling.judge(fail(make_config(8), "workload_failed"))
    assert ruling.reason is None


@pytest.mark.parametrize("kind", ["out_of_memory", "shm_exhausted", "too_many_files", "timed_out", "completed"])
def test_a_resource_that_ran_out_says_nothing_of_workers(kind: TrialKind) -> None:
    tries = Tries(kind)
    ruling = WorkerRuling(CANDIDATES, tries)
    ruling.judge(fail(make_config(8), kind))
    assert tries.configs == []
    assert ruling.reason is None


def test_it_is_found_out_only_once() -> None:
    tries = Tries("completed")
    ruling = WorkerRuling(CANDIDATES, tries)
    for workers in (8, 2):
        ruling.judge(fail(make_config(workers), "stalled"))
    assert len(tries.configs) == 1


def test_workers_that_hung_in_the_probe_are_ruled_out_from_the_start() -> None:
    ruling = WorkerRuling(CANDIDATES, Tries("completed"), failure="made no progress for 60 s")
    assert ruling.applies_to(make_config(1))
    assert "spawn" in str(ruling.reason)


def test_a_failure_may_be_bad_luck_until_it_has_repeated_itself() -> None:
    ruling = WorkerRuling(CANDIDATES, Tries("crashed"))
    first = fail(make_config(8), "crashed")
    assert ruling.may_be_luck(first)
    ruling.note_repeated(first, fail(make_config(8), "completed"))
    assert ruling.may_be_luck(first)
    ruling.note_repeated(first, first)
    assert not ruling.may_be_luck(first)


@pytest.mark.parametrize("kind", ["stalled", "timed_out", "out_of_memory", "completed"])
def test_a_hang_and_a_breach_are_not_looked_at_twice(kind: TrialKind) -> None:
    assert not WorkerRuling(CANDIDATES, Tries(kind)).may_be_luck(fail(make_config(8), kind))


def test_a_failure_without_workers_is_nobodys_bad_luck() -> None:
    assert not WorkerRuling(CANDIDATES, Tries("crashed")).may_be_luck(fail(make_config(0), "crashed"))
