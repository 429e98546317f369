from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import DltuneError, UsageError, WorkloadError
from autotune.progress import ProgressListener
from autotune.protocol.messages import ProgressReport, TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests.builders import MIB
from tests.kept_supervisor import keep_supervisor
from tests.misbehaving import FIRST_USE_SECONDS
from tests.runner.trials import LIMITS, ROOT, make_request, open_runner

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def probe_error(factory: str, stall_seconds: float = 30.0, **options: Any) -> DltuneError:
    with open_runner(factory, stall_seconds, **options) as runner, pytest.raises(DltuneError) as caught:
        runner.probe((8, 8), LIMITS)
    return caught.value


def test_a_ready_loader_becomes_the_baseline() -> None:
    with open_runner("make_loader") as runner:
        profile = runner.probe((8, 8), LIMITS)
    assert profile.drop_last
    assert profile.baseline is not None
    assert profile.baseline.dataloader == DataLoaderSettings(batch_size=8, num_workers=1, prefetch_factor=3)


def test_batches_of_a_batch_sampler_are_measured_unchanged() -> None:
    with open_runner("make_own_batches") as runner:
        profile = runner.probe((8, 8), LIMITS)
        loader = DataLoaderSettings(batch_size=None, num_workers=1, prefetch_factor=2)
        result = runner.run(TrialRequest(config=LoaderConfig(dataloader=loader), epochs=1, seconds=1.0))
    assert (profile.batching, profile.epoch_batches) == ("user", 24)
    assert result.measurement is not None
    assert result.measurement.epochs[0].samples == 48


@pytest.mark.slow
def test_threads_that_reading_leaves_behind_are_not_inherited_by_workers() -> None:
    request = WorkloadRequest(dataset="tests.custom_loaders:make_threaded_stream", step_seconds=1e-4, working_dir=ROOT)
    with TrialRunner(request, stall_seconds=10.0, supervisor=keep_supervisor()) as runner:
        profile = runner.probe((4, 4), LIMITS)
        results = [runner.run(make_request(workers)) for workers in (2, 0, 1)]
    assert profile.worker_failure is None
    assert [result.status for result in results] == ["completed"] * 3


def test_a_file_that_each_worker_opens_is_not_opened_before_they_start() -> None:
    with open_runner("make_lazily_opened") as runner:
        profile = runner.probe((4, 4), LIMITS)
        results = [runner.run(make_request(workers)) for workers in (2, 0, 1)]
    assert profile.worker_failure is None
    assert profile.differing_samples == 0
    assert profile.notes == ()
    assert [(result.status, result.message) for result in results] == [("completed", "")] * 3


@pytest.mark.parametrize(("max_workers", "calls"), [(8, 3), (0, 1)])
def test_a_factory_is_called_once_for_each_role_and_once_more(
    max_workers: int, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    with open_runner("make_counted") as runner:
        runner.probe((8, 8), LIMITS.model_copy(update={"max_workers": max_workers}))
        for workers in (0, 0, 2, 1) if max_workers else (0, 0):
            assert runner.run(make_request(workers)).status == "completed"
    assert len((tmp_path / "calls").read_bytes()) == calls


def test_workers_that_hang_in_the_probe_leave_the_profile_of_the_training_process() -> None:
    with open_runner("make_hangs_in_workers", stall_seconds=3.0) as runner:
        profile = runner.probe((8, 8), LIMITS)
    assert "made no progress" in (profile.worker_failure or "")
    assert profile.samples == 64


@pytest.mark.parametrize(("factory", "is_loader"), [("SharesFile", False), ("make_wrapper", True)])
def test_a_process_whose_workers_moved_a_file_runs_no_trial_without_workers(factory: str, is_loader: bool) -> None:
    with open_runner(factory, is_loader=is_loader) as runner:
        profile = runner.probe((8, 8), LIMITS)
        assert profile.shared_by_workers == f"the position of {ROOT}/tests/misbehaving.py"
        assert runner._child is None


def test_workers_that_exceed_a_budget_in_the_probe_are_reported() -> None:
    with open_runner("make_holding") as runner:
        profile = runner.probe((8, 8), LIMITS.model_copy(update={"memory_bytes": 300 * MIB}), 8)
    assert profile.worker_failure is None
    assert re.search("data of workers was not checked: .* used .* against a budget of 300 MiB", profile.notes[-1])


def test_a_factory_may_take_longer_than_a_trial_may_make_no_progress() -> None:
    with open_runner("make_slowly", stall_seconds=1.0, dataset_args={"seconds": 2.0}) as runner:
        assert runner.run(make_request(0)).status == "completed"


@pytest.mark.parametrize(("factory", "is_duplicated"), [("make_sharded", False), ("make_unsharded", True)])
def test_an_iterable_that_does_not_shard_its_data_fails_with_two_workers(factory: str, is_duplicated: bool) -> None:
    with open_runner(factory) as runner:
        assert runner.probe((8, 8), LIMITS).workers_duplicate_data is is_duplicated
        result = runner.run(make_request(workers=2))
    assert (result.status == "workload_failed") is is_duplicated
    assert result.measurement is None or result.measurement.epochs[0].samples == 64


@pytest.mark.parametrize(
    ("factory", "kind", "words"),
    [
        ("make_raising", WorkloadError, "ValueError: no such bucket: s3://example"),
        ("make_exit", WorkloadError, "SystemExit: 0"),
        ("make_hard_exit", WorkloadError, "exited with code 0 without a result"),
        ("make_damaged", WorkloadError, "failed: ValueError: the file is damaged"),
        ("make_none", UsageError, "returned None"),
        ("make_empty", UsageError, "of length 0"),
        ("make_nothing_at_all", UsageError, "has no 'make_nothing_at_all'"),
    ],
)
def test_a_factory_that_fails_is_reported_as_the_users_error(factory: str, kind: type[DltuneError], words: str) -> None:
    error = probe_error(factory)
    assert isinstance(error, kind)
    assert words in str(error)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("make_raising_step", "tests.misbehaving:make_raising_step failed: RuntimeError: no checkpoint found"),
        ("make_step_that_fails", "The training step (tests.misbehaving:make_step_that_fails) failed on a batch"),
        ("make_no_step", "returned an int, not a function step(batch)"),
    ],
)
def test_a_step_that_fails_is_distinguished_from_the_data(step: str, words: str) -> None:
    assert words in str(probe_error("make_honest", step=f"tests.misbehaving:{step}", step_seconds=None))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("factory", "tensors"), [("make_dicts", 2), ("make_labels", 1)])
def test_a_step_may_use_its_batch_up(workers: int, factory: str, tensors: int) -> None:
    with open_runner(factory, step="tests.misbehaving:make_popping_step", step_seconds=None) as runner:
        assert runner.probe((8,), LIMITS).batch_tensors == tensors
        result = runner.run(make_request(workers, new_process=True))
    assert (result.status, result.message) == ("completed", "")


def test_the_file_of_the_step_is_found_after_the_factory_has_changed_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    with open_runner("make_elsewhere", step="tests/misbehaving.py:make_counting_step", step_seconds=None) as runner:
        assert runner.run(make_request(0)).status == "completed"
    assert (tmp_path / "calls").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_use_of_a_dataset_is_measured_with_workers_and_without(workers: int) -> None:
    with open_runner("make_slow_at_first_use", step_seconds=None) as runner:
        found = runner.run(make_request(workers)).measurement
    assert found is not None
    assert found.epochs[0].end_seconds >= found.epochs[0].wait_seconds >= 0.9 * FIRST_USE_SECONDS


def test_the_traceback_of_a_failing_factory_shows_the_users_line_and_none_of_ours() -> None:
    error = probe_error("make_raising")
    assert isinstance(error, WorkloadError)
    assert "misbehaving.py" in error.details
    assert "autotune" not in error.details


def test_a_factory_that_hangs_is_ended_with_advice() -> None:
    error = probe_error("make_hanging", stall_seconds=0.2)
    assert "made no progress" in str(error)
    assert str(error).count("--stall-time") == 1


def test_a_probe_that_exceeds_its_time_is_ended_with_advice() -> None:
    with open_runner("make_hanging") as runner, pytest.raises(UsageError) as caught:
        runner.probe((8, 8), LIMITS, max_seconds=2.0)
    assert "was not loaded and profiled after the 2.0 s that --timeout had left" in str(caught.value)
    assert "make_hanging" in str(caught.value)


def test_many_small_batches_are_not_many_messages() -> None:
    seen: list[str] = []

    class Listener(ProgressListener):
        def show_progress(self, progress: ProgressReport) -> None:
            seen.append(progress.phase)

    workload = WorkloadRequest(dataset="tests.misbehaving:make_sharded", step_seconds=1e-4, working_dir=ROOT)
    with TrialRunner(workload, 30.0, Listener(), keep_supervisor()) as runner:
        runner.probe((1, 1), LIMITS)
    assert 0 < sum("loading" in phase or "loaded" in phase for phase in seen) < 20  # of 64 batches


def test_a_probe_identifies_the_workload() -> None:
    with open_runner("make_honest") as runner:
        found = runner.probe((8, 8), LIMITS)
    assert (found.kind, found.samples, found.sample_bytes, found.baseline) == ("map", 64, 64, None)
    assert (found.software.start_method, found.accelerator) == ("fork", None)


def test_a_hang_of_workers_does_not_take_all_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.runner.MIN_STALL_SECONDS", 1.0)
    with open_runner("make_hangs_in_workers") as runner:
        profile = runner.probe((8, 8), LIMITS.model_copy(update={"max_workers": 4}), max_seconds=12.0)
        assert re.search(r"\(limit [1-6](\.\d+)? s\)", profile.worker_failure or "")  # half of the time that was left
        assert runner.run(make_request(0, seconds=1.0)).status == "completed"
