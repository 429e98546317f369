"""Real children: what a workload can do to a trial, and what dltune makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.errors import DltuneError, UsageError, WorkloadError
from autotune.request import WorkloadRequest
from autotune.runner.failures import TrialFailure
from autotune.runner.process import OnWarning, TrialProcess
from autotune.runner.process_tree import kill_trial
from autotune.runner.runner import TrialRunner
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.watchdog import Watchdog
from autotune.trial.budgets import Budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import LoadCommand, TrialRequest
from tests.faults.stage import await_condition, list_trial_processes

ROOT = str(Path(__file__).parents[2])
PLAIN = "DLTUNE_TEST_PLAIN"
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)
pytestmark = pytest.mark.usefixtures("leaves_nothing")


def open_runner(
    factory: str, stall_seconds: float = 30.0, on_warning: OnWarning = lambda sentence: None, **options: Any
) -> TrialRunner:
    request = WorkloadRequest.model_validate(
        {"dataset": f"tests.misbehaving:{factory}", "step_seconds": 1e-4, "working_dir": ROOT, **options}
    )
    sandbox = SandboxSupport() if PLAIN in os.environ else None
    return TrialRunner(request, stall_seconds, sandbox=sandbox, on_warning=on_warning)


@pytest.fixture(params=["sandboxed", "plain"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in all of a sandbox that this machine allows, and again without one."""
    if request.param == "plain":
        monkeypatch.setenv(PLAIN, "1")


def make_request(workers: int, *, fresh: bool = False, epochs: int = 2) -> TrialRequest:
    extra = {"prefetch_factor": 2} if workers else {}
    loader = DataLoaderSettings(batch_size=8, num_workers=workers, **extra)
    return TrialRequest(config=LoaderConfig(dataloader=loader), epochs=epochs, seconds=1.0, fresh=fresh)


def run_one(factory: str, workers: int, stall_seconds: float = 30.0) -> TrialResult:
    with open_runner(factory, stall_seconds) as runner:
        runner.limit(LIMITS)
        return runner.run(make_request(workers))


def probe_error(factory: str, stall_seconds: float = 30.0, **options: Any) -> DltuneError:
    with open_runner(factory, stall_seconds, **options) as runner, pytest.raises(DltuneError) as caught:
        runner.probe((8, 8), LIMITS)
    return caught.value


@pytest.fixture
def honest(leaves_nothing: None) -> Iterator[TrialRunner]:
    with open_runner("make_honest") as runner:
        runner.probe((8, 8), LIMITS)
        yield runner


def test_a_workload_is_identified_by_what_its_probe_would_tell(honest: TrialRunner) -> None:
    probed, found = honest.probe((8, 8), LIMITS), honest.identify(8, LIMITS)
    assert (found.kind, found.samples, found.sample_bytes) == (probed.kind, probed.samples, probed.sample_bytes)
    assert (found.software, found.accelerator) == (probed.software, probed.accelerator)


@pytest.mark.parametrize("factory", ["make_raising", "make_damaged"])
def test_a_workload_that_cannot_be_identified_fails_as_its_probe_does(factory: str) -> None:
    with open_runner(factory) as runner, pytest.raises(DltuneError) as caught:
        runner.identify(8, LIMITS)
    assert str(caught.value) == str(probe_error(factory))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_whose_batches_are_sent_ahead_is_whole(honest: TrialRunner, workers: int) -> None:
    request = make_request(workers)
    ahead = request.config.model_copy(update={"process": ProcessSettings(non_blocking=True, device_prefetch=True)})
    result = honest.run(request.model_copy(update={"config": ahead}))
    assert result.measurement is not None, result.message
    assert all(trace.batches == trace.promised_batches == 8 for trace in result.measurement.epochs)


@pytest.mark.usefixtures("either_way")
def test_a_whole_epoch_delivers_what_the_sampler_promised(honest: TrialRunner) -> None:
    result = honest.run(make_request(workers=2))
    assert result.kind == "completed", result.message
    assert result.measurement is not None
    for trace in result.measurement.epochs:
        assert trace.batches == trace.promised_batches == 8
        assert trace.samples == 64


def test_trials_of_the_search_share_one_warm_child(honest: TrialRunner) -> None:
    honest.run(make_request(workers=0))
    before = {child.pid for child in psutil.Process().children()}
    honest.run(make_request(workers=2))
    assert {child.pid for child in psutil.Process().children()} == before


def test_a_confirming_trial_gets_a_process_of_its_own(honest: TrialRunner) -> None:
    honest.run(make_request(workers=0))
    before = {child.pid for child in psutil.Process().children()}
    honest.run(make_request(workers=0, fresh=True))
    assert not before & {child.pid for child in psutil.Process().children()}


def test_workers_are_gone_before_the_next_trial_starts(honest: TrialRunner) -> None:
    honest.run(make_request(workers=3))
    honest.run(make_request(workers=0))
    (child,) = (process for process in psutil.Process().children() if "autotune.child" in " ".join(process.cmdline()))
    those_that_wait = 2 if detect_sandbox().own_pids else 1  # this one and init, or the keeper
    family = [child, *child.children(recursive=True)]
    assert sum("autotune.child" in " ".join(process.cmdline()) for process in family) == 1 + those_that_wait


def test_the_probe_describes_a_map_dataset() -> None:
    with open_runner("make_honest") as runner:
        profile = runner.probe((8, 8), LIMITS)
    assert (profile.kind, profile.samples, profile.sample_bytes) == ("map", 64, 64)
    assert profile.software.start_method == "fork"
    assert profile.baseline is None


def test_a_ready_loader_becomes_the_baseline() -> None:
    with open_runner("make_loader") as runner:
        profile = runner.probe((8, 8), LIMITS)
    assert profile.drop_last
    assert profile.baseline is not None
    assert profile.baseline.dataloader == DataLoaderSettings(batch_size=8, num_workers=1, prefetch_factor=3)


def test_batches_of_the_users_own_are_left_alone() -> None:
    with open_runner("make_own_batches") as runner:
        profile = runner.probe((8, 8), LIMITS)
        loader = DataLoaderSettings(batch_size=None, num_workers=1, prefetch_factor=2)
        result = runner.run(TrialRequest(config=LoaderConfig(dataloader=loader), epochs=1, seconds=1.0))
    assert (profile.batching, profile.epoch_batches) == ("user", 24)
    assert result.measurement is not None
    assert result.measurement.epochs[0].samples == 48


def test_an_iterable_that_does_not_shard_itself_is_found_out() -> None:
    with open_runner("make_unsharded") as runner:
        assert runner.probe((8, 8), LIMITS).workers_duplicate_data


def test_an_iterable_that_shards_itself_is_not_suspected() -> None:
    with open_runner("make_sharded") as runner:
        assert not runner.probe((8, 8), LIMITS).workers_duplicate_data
        result = runner.run(make_request(workers=2))
    assert result.measurement is not None
    assert result.measurement.epochs[0].samples == 64


def test_a_dataset_that_answers_whole_batches_works() -> None:
    assert run_one("make_queries_batches", workers=2).kind == "completed"


def test_what_the_dataset_prints_is_never_taken_for_a_message() -> None:
    assert run_one("make_chatty", workers=0).kind == "completed"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_raising", "ValueError: no such bucket: s3://example"),
        ("make_exit", "SystemExit: 0"),
        ("make_hard_exit", "exited with code 0 without a result"),
    ],
)
def test_a_factory_that_fails_is_reported_as_the_users_error(factory: str, words: str) -> None:
    error = probe_error(factory)
    assert isinstance(error, WorkloadError)
    assert words in str(error)


def test_the_traceback_of_a_failing_factory_shows_the_users_line_and_none_of_ours() -> None:
    error = probe_error("make_raising")
    assert isinstance(error, WorkloadError)
    assert "misbehaving.py" in error.details
    assert "autotune" not in error.details


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_none", "returned None"),
        ("make_empty", "of length 0"),
        ("make_nothing_at_all", "has no 'make_nothing_at_all'"),
    ],
)
def test_a_factory_that_gives_no_dataset_is_a_usage_error(factory: str, words: str) -> None:
    error = probe_error(factory)
    assert isinstance(error, UsageError)
    assert words in str(error)


def test_a_factory_that_hangs_is_ended_and_told_how_to_get_more_time() -> None:
    error = probe_error("make_hanging", stall_seconds=4.0)
    assert "made no progress" in str(error)
    assert str(error).count("--stall-time") == 1


def test_samples_that_raise_now_and_then_are_counted_when_the_probe_meets_one() -> None:
    error = probe_error("make_damaged")
    assert "failed: ValueError: the file is damaged" in str(error)
    assert "About 8 of 64 samples raise (one is sample " in str(error)


def test_a_step_factory_that_fails_is_named() -> None:
    error = probe_error("make_honest", step="tests.misbehaving:make_raising_step", step_seconds=None)
    assert "tests.misbehaving:make_raising_step failed: RuntimeError: no checkpoint found" in str(error)


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


@pytest.mark.usefixtures("either_way")
def test_a_worker_killed_by_a_signal_is_a_crash() -> None:
    result = run_one("make_kills_its_worker", workers=1)
    assert result.kind == "crashed"


def test_a_probe_that_has_not_ended_when_the_time_is_over_is_ended_with_a_way_out() -> None:
    with open_runner("make_hanging") as runner, pytest.raises(UsageError) as caught:
        runner.probe((8, 8), LIMITS, max_seconds=2.0)
    assert "was not loaded and profiled after the 2.0 s that --timeout had left" in str(caught.value)
    assert "make_hanging" in str(caught.value)


def test_an_error_of_the_users_is_shown_even_when_the_time_is_over() -> None:
    with open_runner("make_raising") as runner, pytest.raises(WorkloadError, match="no such bucket"):
        runner.probe((8, 8), LIMITS, max_seconds=60.0)


def test_what_the_start_of_a_process_took_is_known_afterwards() -> None:
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS)
        before = runner.start_seconds
        runner.run(make_request(workers=0))
        assert before is None
        assert (runner.start_seconds or 0.0) > 0


@pytest.mark.usefixtures("either_way")
def test_a_hung_worker_is_a_stalled_trial() -> None:
    result = run_one("make_hangs_in_workers", workers=2, stall_seconds=5.0)
    assert result.kind == "stalled"
    assert result.samples == 8  # of the batch that it waits for


def test_an_epoch_that_ends_early_never_counts() -> None:
    with open_runner("make_ends_early") as runner:
        runner.limit(LIMITS)
        result = runner.run(make_request(workers=2))
    assert result.kind == "workload_failed"
    assert "StopIteration" in result.message


@pytest.mark.usefixtures("either_way")
def test_a_grandchild_that_left_its_session_is_ended_with_the_trial() -> None:
    result = run_one("make_with_grandchild", workers=0)
    assert result.kind == "completed"


class AttentiveChild(TrialProcess):
    """Looks, when its output is read, whether its processes have come to a halt."""

    def read_output(self) -> str:
        await_condition(lambda: not list_running(), "a halt")
        return super().read_output()


def list_running() -> list[int]:
    halted = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    return [process.pid for process in list_trial_processes() if process.status() not in halted]


@pytest.mark.parametrize("sandbox", [detect_sandbox(), SandboxSupport()], ids=["sandboxed", "plain"])
def test_a_trial_that_must_end_is_halted_before_anything_else_is_done(sandbox: SandboxSupport) -> None:
    workload = WorkloadRequest(dataset="tests.misbehaving:make_hanging", step_seconds=1e-4, working_dir=ROOT)
    child = AttentiveChild(ROOT, LIMITS, sandbox, lambda progress: None)
    death = child.command(
        LoadCommand(workload=workload), Watchdog(budgets=LIMITS, stall_seconds=30.0, deadline_seconds=4.0)
    )
    assert isinstance(death, TrialFailure)
    assert death.kind == "timed_out"


@pytest.mark.usefixtures("either_way")
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


@pytest.mark.usefixtures("either_way")
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


@pytest.mark.usefixtures("either_way")
def test_in_a_child_that_replaces_another_workers_find_torchs_shared_memory_manager_running() -> None:
    request = make_request(workers=2)
    shared = request.config.model_copy(update={"process": ProcessSettings(sharing_strategy="file_system")})
    with open_runner("make_honest") as runner:
        runner.limit(LIMITS)
        assert runner.run(request.model_copy(update={"config": shared})).kind == "completed"
        left = [process.name() for process in list_trial_processes()]  # a worker that finds none starts its own
        assert left.count("torch_shm_manager") == 1


def test_a_step_that_fails_on_a_batch_is_not_blamed_on_the_data() -> None:
    error = probe_error("make_honest", step="tests.misbehaving:make_step_that_fails", step_seconds=None)
    assert "The training step (tests.misbehaving:make_step_that_fails) failed on a batch" in str(error)


def test_a_step_factory_that_returns_no_function_is_a_usage_error() -> None:
    error = probe_error("make_honest", step="tests.misbehaving:make_no_step", step_seconds=None)
    assert "returned a int, not a function step(batch)" in str(error)


def test_a_stalled_trial_quotes_what_its_worker_last_said() -> None:
    result = run_one("make_unpicklable", workers=1, stall_seconds=4.0)
    assert result.kind == "stalled"
    assert "cannot pickle 'generator' object" in result.message


def test_processes_that_outlive_their_trial_are_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_all_but_one(trial_id: str, keeper: int | None = None) -> list[int]:
        return [*kill_trial(trial_id, keeper), os.getpid()]

    monkeypatch.setattr("autotune.runner.process.kill_trial", end_all_but_one)
    warnings: list[str] = []
    with open_runner("make_honest", on_warning=warnings.append) as runner:
        runner.limit(LIMITS)
        assert runner.run(make_request(workers=0)).kind == "completed"
    assert [f"kill -9 {os.getpid()}" in warning for warning in warnings] == [True]
