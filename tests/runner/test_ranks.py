"""Several real training processes at once: their joint measurement, and failures of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.protocol.measurement import Measurement, TrialResult
from autotune.runner.runner import TrialRunner
from tests.runner.trials import LIMITS, make_request, open_runner

pytestmark = pytest.mark.usefixtures("leaves_nothing")
slow = pytest.mark.slow


def open_ranks(factory: str, ranks: int = 2, stall: float = 30.0, **options: Any) -> TrialRunner:
    request = {"dataset": f"tests.rank_workloads:{factory}", "nproc_per_node": ranks, **options}
    return open_runner("", stall, **request)


def run_ranks(factory: str, workers: int = 1, seconds: float = 20.0, **options: Any) -> TrialResult:
    with open_ranks(factory, **options) as runner:
        return runner.run(make_request(workers, seconds=seconds))


def measure_ranks(factory: str, **options: Any) -> Measurement:
    result = run_ranks(factory, **options)
    if result.measurement is None:
        pytest.fail(f"{result.message}\n{result.details}")
    return result.measurement


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("factory", ["Honest", pytest.param("make_sampled", marks=slow)])
def test_ranks_shard_a_dataset(factory: str, workers: int) -> None:
    found = measure_ranks(factory, workers=workers)
    assert [trace.samples for trace in found.epochs] == [32] * len(found.epochs)
    assert [rank.samples for rank in found.ranks] == [32, 32]


@slow
def test_each_rank_has_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = measure_ranks("Honest", ranks=3, step="tests.rank_workloads:make_environment_step", step_seconds=None)
    assert len(found.ranks) == 3


@slow
@pytest.mark.parametrize(
    ("factory", "options", "samples"),
    [
        ("make_unshared", {}, 64),
        ("make_unshared", {"seconds": 1.0, "step_seconds": 0.2}, 64),  # an epoch that is too long for a trial
        ("Stream", {}, 32),
    ],
)
def test_the_samples_that_each_rank_delivers_are_counted(factory: str, options: dict[str, Any], samples: int) -> None:
    found = measure_ranks(factory, **options)
    assert [rank.samples for rank in found.ranks] == [samples, samples]
    assert (found.epochs[0].closed_after is not None) == ("seconds" in options)


@slow
def test_a_rank_that_runs_out_of_data_ends_the_epoch_of_all() -> None:
    assert {trace.batches for trace in measure_ranks("Uneven").epochs} <= {7, 8}


def test_the_measurement_is_that_of_the_slowest_rank_which_the_others_wait_for() -> None:
    found = measure_ranks("OddInRank1", workers=0, seconds=1.0, dataset_args={"deed": "wait", "seconds": 0.01})
    first, second = found.ranks
    assert second.wait_seconds > 2 * first.wait_seconds
    assert sum(trace.wait_seconds for trace in found.epochs) == pytest.approx(second.wait_seconds, rel=0.1)


def test_a_probe_profiles_one_process_and_trials_measure_all() -> None:
    with open_ranks("make_sampled") as runner:
        assert runner.probe((8, 8), LIMITS).samples == 64
        measured = runner.run(make_request(1)).measurement
        assert measured is not None
        assert measured.epochs[0].samples == 32


@slow
def test_trials_of_a_search_share_the_ranks() -> None:
    with open_ranks("Honest") as runner:
        children = [(runner.run(make_request(workers)).status, runner._child) for workers in (1, 2, 0)]
    assert children == [("completed", children[0][1])] * 3


@pytest.mark.parametrize(
    ("deed", "workers", "kind", "words"),
    [
        ("raise", 0, "workload_failed", "in rank 1 raised ValueError: rank 1 has no such sample"),
        ("raise", 1, "workload_failed", "in rank 1 raised ValueError: rank 1 has no such sample"),
        ("kill", 0, "crashed", "in rank 1 was killed by SIGKILL"),
        ("kill", 1, "crashed", "in rank 1 was killed by SIGKILL"),
        pytest.param("hang", 0, "stalled", "rank 1 hangs in `_do` at rank_workloads.py", marks=slow),
        ("hang", 1, "stalled", "worker 1 of 1 of rank 1 hangs in `_do` at rank_workloads.py"),
    ],
)
def test_a_failure_of_one_rank_is_reported_with_its_number(deed: str, workers: int, kind: str, words: str) -> None:
    stall = 2.0 if deed == "hang" else 30.0
    result = run_ranks("OddInRank1", workers=workers, stall=stall, dataset_args={"deed": deed, "seconds": 1e6})
    assert result.status == kind
    assert words in result.message


@slow
def test_an_error_of_all_ranks_is_reported_as_that_of_one_process() -> None:
    result = run_ranks("Broken")
    assert (result.status, result.message[:6]) == ("workload_failed", "raised")


@slow
def test_ranks_that_exhaust_a_small_shm_together_fail_with_its_name() -> None:
    with open_ranks("Honest", 4, dataset_args={"floats": 100_000}) as runner:
        runner.limit(LIMITS.model_copy(update={"shm_bytes": 2**20}))
        result = runner.run(make_request(2))
    assert (result.status, "/dev/shm" in result.message) == ("shm_exhausted", True)


@slow
def test_the_memory_of_a_trial_is_that_of_one_rank() -> None:
    alone, both = (run_ranks("make_unshared", ranks=ranks).peak_host_bytes for ranks in (1, 2))
    assert 0.5 * alone < both < 1.5 * alone
