"""Several real training processes at once: what they measure together, and what becomes of one that fails."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.protocol.measurement import Measurement, TrialResult
from autotune.runner.runner import TrialRunner
from tests.runner.trials import LIMITS, PLAIN, make_request, open_runner

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def open_ranks(factory: str, ranks: int = 2, stall_seconds: float = 30.0, **options: Any) -> TrialRunner:
    runner = open_runner(
        "", stall_seconds, **{"dataset": f"tests.rank_workloads:{factory}", "nproc_per_node": ranks, **options}
    )
    runner.limit(LIMITS)
    return runner


def run_ranks(
    factory: str, ranks: int = 2, workers: int = 1, stall: float = 30.0, seconds: float = 20.0, **options: Any
) -> TrialResult:
    with open_ranks(factory, ranks, stall, **options) as runner:
        return runner.run(make_request(workers, seconds=seconds))


def measure_ranks(factory: str, ranks: int = 2, workers: int = 1, **options: Any) -> Measurement:
    result = run_ranks(factory, ranks, workers, **options)
    assert result.measurement is not None, (result.message, result.details)
    return result.measurement


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("factory", ["Honest", pytest.param("make_sampled", marks=pytest.mark.slow)])
def test_ranks_share_a_dataset_out(factory: str, workers: int) -> None:
    found = measure_ranks(factory, workers=workers)
    assert [trace.samples for trace in found.epochs] == [32] * len(found.epochs)
    assert [rank.samples for rank in found.ranks] == [32, 32]


@pytest.mark.slow
def test_each_rank_is_started_as_by_torchrun() -> None:
    found = measure_ranks("Honest", ranks=3, step="tests.rank_workloads:make_environment_step", step_seconds=None)
    assert len(found.ranks) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "shares"), [("make_unshared", [64, 64]), ("make_stream", [32, 32])])
def test_what_each_rank_delivers_is_counted(factory: str, shares: list[int]) -> None:
    assert [rank.samples for rank in measure_ranks(factory).ranks] == shares


@pytest.mark.slow
def test_what_a_rank_would_deliver_in_an_epoch_too_long_for_a_trial_is_counted_as_well() -> None:
    found = measure_ranks("make_unshared", seconds=1.0, step_seconds=0.2)
    assert found.epochs[0].closed_after is not None
    assert [rank.samples for rank in found.ranks] == [64, 64]


@pytest.mark.slow
def test_a_rank_that_runs_out_of_data_ends_the_epoch_of_all() -> None:
    assert {trace.batches for trace in measure_ranks("make_uneven").epochs} <= {7, 8}


def test_the_rank_that_the_others_wait_for_is_the_one_that_is_slow() -> None:
    first, second = measure_ranks(
        "make_odd", workers=0, seconds=1.0, dataset_args={"deed": "wait", "seconds": 0.01}
    ).ranks
    assert second.wait_seconds > 2 * first.wait_seconds
    assert second.late_steps > 0.8 * second.steps > 0


@pytest.mark.slow
def test_the_measurement_is_that_of_the_slowest_rank() -> None:
    found = measure_ranks("make_odd", workers=0, seconds=1.0, dataset_args={"deed": "wait", "seconds": 0.01})
    waited = sum(trace.wait_seconds for trace in found.epochs)
    assert waited == pytest.approx(max(rank.wait_seconds for rank in found.ranks), rel=0.1)


def test_a_probe_looks_at_one_process_and_trials_at_all() -> None:
    with open_ranks("make_sampled") as runner:
        assert runner.probe((8, 8), LIMITS).samples == 64
        measured = runner.run(make_request(1)).measurement
        assert measured is not None
        assert measured.epochs[0].samples == 32


@pytest.mark.slow
def test_trials_of_a_search_share_the_ranks() -> None:
    with open_ranks("Honest") as runner:
        children = [(runner.run(make_request(workers)).kind, runner._child) for workers in (1, 2, 0)]
    assert children == [("completed", children[0][1])] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_one_rank_is_told_with_its_number(workers: int) -> None:
    result = run_ranks("make_odd", workers=workers, dataset_args={"deed": "raise"})
    assert result.kind == "workload_failed"
    assert result.message.startswith("in rank 1 raised ValueError: rank 1 has no such sample")


@pytest.mark.slow
def test_an_error_of_all_ranks_is_told_as_that_of_one_process() -> None:
    result = run_ranks("make_broken")
    assert (result.kind, result.message[:6]) == ("workload_failed", "raised")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_rank_that_is_killed_is_told_with_its_number(workers: int) -> None:
    result = run_ranks("make_odd", workers=workers, dataset_args={"deed": "kill"})
    assert result.kind == "crashed"
    assert result.message.startswith("in rank 1 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("workers", "who"),
    [pytest.param(0, "rank 1 hangs in", marks=pytest.mark.slow), (1, "worker 1 of 1 of rank 1 hangs in")],
)
def test_a_rank_that_hangs_is_told_with_its_number(workers: int, who: str) -> None:
    result = run_ranks("make_odd", workers=workers, stall=2.0, dataset_args={"deed": "hang", "seconds": 1e6})
    assert result.kind == "stalled"
    assert f"{who} `_do` at rank_workloads.py" in result.message


@pytest.mark.slow
def test_ranks_that_fill_a_small_shm_together_end_in_its_name() -> None:
    small = LIMITS.model_copy(update={"shm_bytes": 2**20})
    options: dict[str, Any] = {"dataset": "tests.misbehaving:make_honest", "dataset_args": {"floats": 100_000}}
    with open_ranks("", ranks=4, **options) as runner:
        runner.limit(small)
        result = runner.run(make_request(2))
    assert result.kind == "shm_exhausted", result.message
    assert "/dev/shm" in result.message


@pytest.mark.slow
def test_memory_of_a_trial_is_told_of_one_of_its_ranks() -> None:
    alone, both = (run_ranks("make_unshared", ranks).peak_host_bytes for ranks in (1, 2))
    assert 0.5 * alone < both < 1.5 * alone


@pytest.mark.slow
def test_ranks_are_ended_without_a_sandbox_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLAIN, "1")
    result = run_ranks("make_odd", stall=2.0, dataset_args={"deed": "hang", "seconds": 1e6})
    assert result.kind == "stalled"
