"""Real children: what a workload can do to a trial, and what dltune makes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import ProcessSettings
from autotune.profiles.schema import Budgets
from autotune.runner.resources import ResourceMonitor, ResourceUsage
from autotune.runner.runner import TrialProcess, TrialRunner, describe_survivors
from tests.conftest import list_trial_processes
from tests.faults.stage import await_condition
from tests.kept_supervisor import list_kept
from tests.runner.trials import LIMITS, make_request, open_runner, run_one

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def honest(leaves_nothing: None) -> Iterator[TrialRunner]:
    with open_runner("make_honest") as runner:
        yield runner


def test_exit_handlers_of_the_dataset_run_for_a_while(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    with open_runner("make_with_exit_handlers", dataset_args={"path": str(temporary)}) as runner:
        assert runner.run(make_request(2)).status == "completed"
        assert temporary.exists()
    assert not temporary.exists()


@pytest.mark.parametrize(("workers", "is_ahead"), [(0, True), (2, True), (2, False)])
def test_a_whole_epoch_delivers_what_the_sampler_promised(honest: TrialRunner, workers: int, is_ahead: bool) -> None:
    request = make_request(workers)
    settings = ProcessSettings(non_blocking=is_ahead, device_prefetch=is_ahead)
    config = request.config.model_copy(update={"process": settings})
    result = honest.run(request.model_copy(update={"config": config}))
    assert result.measurement is not None, result.message
    for trace in result.measurement.epochs:
        assert (trace.batches, trace.samples) == (8, 64)


@pytest.mark.parametrize(("factory", "method"), [("make_honest", "spawn"), ("make_slow_at_first_use", "fork")])
def test_the_seconds_of_a_trial_begin_when_workers_are_there_that_take_longer_to_start(
    factory: str, method: Any
) -> None:
    request = make_request(workers=1).model_copy(update={"seconds": 0.3})
    config = request.config.model_copy(update={"process": ProcessSettings(multiprocessing_context=method)})
    with open_runner(factory, dataset_args={"samples": 1_000_000}) as runner:
        result = runner.run(request.model_copy(update={"config": config}))
    assert result.measurement is not None, result.message
    assert result.measurement.epochs[0].batches > 8  # not those alone that were there when the first one was


def find_child() -> psutil.Process:
    """Find the main process of the running trial, which the supervisor has forked."""
    (supervisor,) = list_kept()
    (child,) = psutil.Process(supervisor).children()
    return child


def test_a_child_runs_trials_until_it_has_read_the_dataset_and_workers_must_not_inherit_that(
    honest: TrialRunner,
) -> None:
    children = []
    assert honest.start_seconds is None
    for workers in (1, 2, 0, 0, 2):
        assert honest.run(make_request(workers)).status == "completed"
        children.append(find_child())
    assert len(set(children[:4])) == 1
    assert len(set(children)) == 2


def test_a_trial_runs_in_a_new_process_if_asked_for(honest: TrialRunner) -> None:
    children = []
    for new_process in (False, True):
        assert honest.run(make_request(2, new_process=new_process)).status == "completed"
        children.append(find_child())
    assert len(set(children)) == 2


def test_workers_are_gone_before_the_next_trial_starts(honest: TrialRunner) -> None:
    honest.run(make_request(workers=3))
    honest.run(make_request(workers=1))
    assert len(find_child().children()) <= 1


def test_what_workers_gain_shows_where_a_batch_takes_longer_than_the_trial() -> None:
    """A second round is loaded, with workers or without: the first one has the start of the epoch."""
    with open_runner("make_waiting", dataset_args={"seconds": 0.1}) as runner:
        alone, four = (runner.run(make_request(workers, epochs=1, seconds=0.1)) for workers in (0, 4))
    assert alone.measurement is not None, alone.message
    assert four.measurement is not None, four.message
    assert [one.measurement.epochs[0].batches for one in (alone, four) if one.measurement] == [2, 8]


@pytest.mark.parametrize(
    ("factory", "workers"), [("make_queries_batches", 2), ("make_chatty", 0), ("make_with_grandchild", 0)]
)
def test_a_dataset_may_return_batches_print_anything_and_leave_processes(factory: str, workers: int) -> None:
    assert run_one(factory, workers).status == "completed"


@pytest.mark.parametrize(
    ("factory", "workers", "kind", "words"),
    [
        ("make_fails_in_workers", 1, "workload_failed", "the handle does not survive a fork"),
        ("make_kills_its_worker", 1, "crashed", "killed by signal: Killed"),
        ("make_killed", 0, "crashed", "SIGKILL"),
        ("make_hangs_in_workers", 2, "stalled", "worker 1 of 2 hangs"),
        ("make_unpicklable", 1, "workload_failed", "cannot pickle 'generator' object"),
        ("make_ends_early", 2, "workload_failed", "StopIteration"),
        ("make_unprintable", 0, "workload_failed", r"ValueError: caf\udce9.jpg: a name that is not UTF-8"),
        ("make_unprintable", 1, "workload_failed", r"ValueError: caf\udce9.jpg: a name that is not UTF-8"),
    ],
)
def test_a_failure_is_reported_by_its_kind_and_cause(factory: str, workers: int, kind: str, words: str) -> None:
    result = run_one(factory, workers, stall_seconds=3.0 if kind == "stalled" else 30.0)
    assert result.status == kind
    assert words in f"{result.message}\n{result.details}"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failure_reports_the_samples_up_to_it(workers: int) -> None:
    result = run_one("make_fails_at_one_sample", workers)
    assert result.status == "workload_failed"
    assert result.samples in range(8, 65, 8)
    assert not result.in_step


def test_a_step_that_fails_in_a_trial_is_told_from_data_that_does() -> None:
    with open_runner("make_honest", step="tests.misbehaving:make_step_that_fails", step_seconds=None) as runner:
        assert runner.run(make_request(workers=1)).in_step


def test_a_trial_that_must_end_is_stopped_before_its_output_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_output(process: TrialProcess) -> str:
        stopped = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        await_condition(lambda: {one.status() for one in list_trial_processes()} <= stopped, "a stop")
        return "stopped"

    monkeypatch.setattr(TrialProcess, "read_output", read_output)
    assert run_one("make_hangs_in_workers", 2, stall_seconds=1.0).details.startswith("stopped")


def test_a_trial_goes_on_after_dltune_was_stopped_for_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    read, stops = ResourceMonitor.read, [3.0]

    def read_after_stop(monitor: ResourceMonitor, budgets: Budgets, *, exact: bool = False) -> ResourceUsage:
        time.sleep(stops.pop() if stops else 0.0)
        return read(monitor, budgets, exact=exact)

    monkeypatch.setattr("autotune.runner.runner.MAX_TICK_SECONDS", 2.0)
    with open_runner("make_honest", stall_seconds=2.0) as runner:
        runner.run(make_request(workers=0, seconds=0.1))
        monkeypatch.setattr(ResourceMonitor, "read", read_after_stop)
        result = runner.run(make_request(workers=0, seconds=0.1))
    assert (result.status, stops) == ("completed", [])


def test_a_trial_over_its_memory_budget_is_ended_with_the_numbers() -> None:
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS.model_copy(update={"memory_bytes": 2**20}))
        result = runner.run(make_request(workers=0))
    assert result.status == "out_of_memory"
    assert "against a budget of 1.0 MiB" in result.message


def test_the_next_trial_after_a_failure_gets_a_new_child() -> None:
    with open_runner("make_fails_in_workers") as runner:
        assert runner.run(make_request(workers=1)).status == "workload_failed"
        assert runner.run(make_request(workers=0)).status == "completed"


def test_a_copy_of_the_child_made_by_the_factory_never_answers_in_its_place() -> None:
    with open_runner("make_forked") as runner:
        assert runner.probe((8, 8), LIMITS).samples == 64
        assert runner.run(make_request(workers=2)).status == "completed"


def test_samples_are_counted_by_the_sampler_whatever_shape_they_arrive_in() -> None:
    with open_runner("make_scalars") as runner:
        assert runner.probe((8, 8), LIMITS).probe_batch_size == 8
        result = runner.run(make_request(workers=1))
    assert result.measurement is not None
    assert result.measurement.epochs[0].samples == 64


def test_a_step_is_warmed_up_before_anything_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    with open_runner("make_honest", step="tests.misbehaving:make_counting_step", step_seconds=None) as runner:
        result = runner.run(make_request(workers=1, new_process=True))
    assert result.measurement is not None
    timed = sum(trace.batches for trace in result.measurement.epochs)
    assert len((tmp_path / "calls").read_bytes()) == timed + 3


def test_a_child_that_replaces_another_starts_no_workers_but_those_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    assert run_one("make_counting_forks", workers=2).status == "completed"
    assert len((tmp_path / "calls").read_bytes()) == 2 * 2  # of the trial's two epochs


def test_processes_that_outlive_their_trial_are_named_in_a_warning() -> None:
    assert f"{os.getpid()} (" in (warning := describe_survivors([os.getpid()]))
    assert warning.endswith(f"kill -9 {os.getpid()}")
