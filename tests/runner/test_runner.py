"""Real children: what a workload can do to a trial, and what dltune makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.config import ProcessSettings
from autotune.protocol.messages import LoadCommand
from autotune.request import WorkloadRequest
from autotune.runner.diagnosis import TrialFailure
from autotune.runner.process import TrialProcess, describe_survivors
from autotune.runner.resources import Limits
from autotune.runner.runner import TrialRunner
from tests.conftest import list_trial_processes
from tests.faults.stage import await_condition
from tests.kept_launcher import keep_launcher, list_kept
from tests.runner.trials import LIMITS, ROOT, make_request, open_runner, run_one

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def honest(leaves_nothing: None) -> Iterator[TrialRunner]:
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS)
        yield runner


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_whose_batches_are_sent_ahead_is_whole(honest: TrialRunner, workers: int) -> None:
    request = make_request(workers)
    ahead = request.config.model_copy(update={"process": ProcessSettings(non_blocking=True, device_prefetch=True)})
    result = honest.run(request.model_copy(update={"config": ahead}))
    assert result.measurement is not None, result.message
    assert all(trace.batches == trace.promised_batches == 8 for trace in result.measurement.epochs)


def test_the_seconds_of_a_trial_begin_when_workers_are_there_that_take_longer_to_start() -> None:
    spawned = make_request(workers=1).model_copy(update={"seconds": 0.3})
    config = spawned.config.model_copy(update={"process": ProcessSettings(multiprocessing_context="spawn")})
    with open_runner("make_honest", dataset_args={"samples": 1_000_000}) as runner:
        runner.limit(LIMITS)
        result = runner.run(spawned.model_copy(update={"config": config}))
    assert result.measurement is not None, result.message
    assert result.measurement.epochs[0].batches > 8  # not those alone that were there when the first one was


def test_a_whole_epoch_delivers_what_the_sampler_promised(honest: TrialRunner) -> None:
    result = honest.run(make_request(workers=2))
    assert result.kind == "completed", result.message
    assert result.measurement is not None
    for trace in result.measurement.epochs:
        assert trace.batches == trace.promised_batches == 8
        assert trace.samples == 64


def find_child() -> psutil.Process:
    """Find the main process of the running trial, which the supervisor has forked."""
    (supervisor,) = list_kept()
    (child,) = psutil.Process(supervisor).children()
    return child


def test_a_child_runs_trials_until_it_has_read_the_dataset_and_workers_must_not_inherit_that(
    honest: TrialRunner,
) -> None:
    children = []
    for workers in (1, 2, 0, 0, 2):
        assert honest.run(make_request(workers)).kind == "completed"
        children.append(find_child())
    assert len(set(children[:4])) == 1
    assert children[4] not in children[:4]


def test_a_confirming_trial_gets_a_process_of_its_own(honest: TrialRunner) -> None:
    honest.run(make_request(workers=0))
    before = find_child()
    honest.run(make_request(workers=0, fresh=True))
    assert find_child() != before


def test_workers_are_gone_before_the_next_trial_starts(honest: TrialRunner) -> None:
    honest.run(make_request(workers=3))
    honest.run(make_request(workers=1))
    assert len(find_child().children()) <= 1


def test_what_workers_gain_shows_where_a_batch_takes_longer_than_the_trial() -> None:
    with open_runner("make_waiting", dataset_args={"seconds": 0.1}) as runner:
        runner.limit(LIMITS)
        alone, four = (runner.run(make_request(workers, epochs=1, seconds=0.1)) for workers in (0, 4))
    assert alone.measurement is not None, alone.message
    assert four.measurement is not None, four.message
    assert [one.measurement.epochs[0].batches for one in (alone, four) if one.measurement] == [1, 4]


def test_a_dataset_that_answers_whole_batches_works() -> None:
    assert run_one("make_queries_batches", workers=2).kind == "completed"


def test_what_the_dataset_prints_is_never_taken_for_a_message() -> None:
    assert run_one("make_chatty", workers=0).kind == "completed"


def test_a_dataset_that_fails_only_in_workers_rules_workers_out() -> None:
    result = run_one("make_fails_in_workers", workers=1)
    assert result.kind == "workload_failed"
    assert "the handle does not survive a fork" in result.details


@pytest.mark.parametrize(("workers", "index"), [(0, 21), (2, None)])
def test_a_failure_tells_how_far_it_came_and_in_the_training_process_which_sample_it_was(
    workers: int, index: int | None
) -> None:
    result = run_one("make_fails_at_one_sample", workers)
    assert result.kind == "workload_failed"
    assert result.samples in range(8, 65, 8)
    assert result.index == index
    assert not result.in_step


def test_a_step_that_fails_in_a_trial_is_told_from_data_that_does() -> None:
    with open_runner("make_honest", step="tests.misbehaving:make_step_that_fails", step_seconds=None) as runner:
        runner.limit(LIMITS)
        assert runner.run(make_request(workers=1)).in_step


def test_a_worker_killed_by_a_signal_is_a_crash() -> None:
    result = run_one("make_kills_its_worker", workers=1)
    assert result.kind == "crashed"


def test_what_the_start_of_a_process_took_is_known_afterwards() -> None:
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS)
        before = runner.start_seconds
        runner.run(make_request(workers=0))
        assert before is None
        assert (runner.start_seconds or 0.0) > 0


def test_a_hung_worker_is_a_stalled_trial() -> None:
    result = run_one("make_hangs_in_workers", workers=2, stall_seconds=3.0)
    assert result.kind == "stalled"
    assert result.samples == 8  # of the batch that it waits for


def test_an_epoch_that_ends_early_never_counts() -> None:
    with open_runner("make_ends_early") as runner:
        runner.limit(LIMITS)
        result = runner.run(make_request(workers=2))
    assert result.kind == "workload_failed"
    assert "StopIteration" in result.message


def test_a_grandchild_that_left_its_session_is_ended_with_the_trial() -> None:
    result = run_one("make_with_grandchild", workers=0)
    assert result.kind == "completed"


class AttentiveProcess(TrialProcess):
    """Waits, when its output is read, until its processes are stopped."""

    def read_output(self) -> str:
        await_condition(lambda: not list_running(), "a stop")
        return super().read_output()


def list_running() -> list[int]:
    stopped = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return [one.pid for one in list_trial_processes() if one.status() not in stopped]


def test_a_trial_that_must_end_is_stopped_before_anything_else_is_done() -> None:
    workload = WorkloadRequest(dataset="tests.misbehaving:make_hanging", step_seconds=1e-4, working_dir=ROOT)
    process = AttentiveProcess(keep_launcher(), LIMITS, ROOT)
    failure = process.command(
        LoadCommand(workload=workload), Limits(budgets=LIMITS, stall_seconds=30.0, deadline_seconds=1.0)
    )
    assert isinstance(failure, TrialFailure)
    assert failure.kind == "timed_out"


def test_a_trial_over_its_memory_budget_is_ended_with_the_numbers() -> None:
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS.model_copy(update={"memory_bytes": 2**20}))
        result = runner.run(make_request(workers=0))
    assert result.kind == "out_of_memory"
    assert "against a budget of 1.0 MiB" in result.message


def test_the_next_trial_after_a_failure_gets_a_new_child() -> None:
    with open_runner("make_fails_in_workers") as runner:
        runner.limit(LIMITS)
        assert runner.run(make_request(workers=1)).kind == "workload_failed"
        assert runner.run(make_request(workers=0)).kind == "completed"


def test_a_copy_of_the_child_made_by_the_factory_never_answers_in_its_place() -> None:
    with open_runner("make_forked") as runner:
        assert runner.probe((8, 8), LIMITS).samples == 64
        assert runner.run(make_request(workers=2)).kind == "completed"


def test_samples_are_counted_by_the_sampler_whatever_shape_they_arrive_in() -> None:
    with open_runner("make_scalars") as runner:
        assert runner.probe((8, 8), LIMITS).probe_batch_size == 8
        result = runner.run(make_request(workers=1))
    assert result.measurement is not None
    assert result.measurement.epochs[0].samples == 64


def test_a_step_is_warmed_up_before_anything_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    with open_runner("make_honest", step="tests.misbehaving:make_counting_step", step_seconds=None) as runner:
        runner.limit(LIMITS)
        result = runner.run(make_request(workers=1, fresh=True))
    assert result.measurement is not None
    timed = sum(trace.batches for trace in result.measurement.epochs)
    assert len((tmp_path / "calls").read_bytes()) == timed + 3


def test_a_child_that_replaces_another_starts_no_workers_but_those_of_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    assert run_one("make_counting_forks", workers=2).kind == "completed"
    assert len((tmp_path / "calls").read_bytes()) == 2 * 2  # of the trial's two epochs


def test_a_stalled_trial_quotes_what_its_worker_last_said() -> None:
    result = run_one("make_unpicklable", workers=1, stall_seconds=3.0)
    assert result.kind == "stalled"
    assert "cannot pickle 'generator' object" in result.message


def test_processes_that_outlive_their_trial_are_named_in_a_warning() -> None:
    assert f"{os.getpid()} (" in (warning := describe_survivors([os.getpid()]))
    assert warning.endswith(f"kill -9 {os.getpid()}")
