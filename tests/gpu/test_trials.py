"""Trials on a real device, in real children."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import TunedProfile, load
from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import WorkloadError
from autotune.profiles.schema import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.tuning import tune
from tests.builders import make_config

ROOT = str(Path(__file__).parent.parent.parent)
GIB = 1024**3
LIMITS = Budgets(memory_bytes=32 * GIB, reserve_bytes=0, shm_bytes=2 * GIB, nofile=1024, gpu_bytes=4 * GIB)


def make_workload(step: str | None = "make_linear_step", step_seconds: float | None = None) -> WorkloadRequest:
    return WorkloadRequest(
        dataset="tests.gpu.steps:make_images",
        step=step and f"tests.gpu.steps:{step}",
        step_seconds=step_seconds,
        device="cuda",
        working_dir=ROOT,
    )


def make_gpu_config(workers: int = 2, *, pinned: bool = True, ahead: bool = False) -> LoaderConfig:
    process = ProcessSettings(non_blocking=pinned, device_prefetch=ahead)
    return make_config(workers, process=process, pin_memory=pinned)


def run(runner: TrialRunner, config: LoaderConfig) -> TrialResult:
    runner.limit(LIMITS)
    return runner.run(TrialRequest(config=config, epochs=3, seconds=3.0))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("pinned", "ahead"), [(False, False), (True, False), (True, True)])
def test_epochs_are_whole_however_batches_get_to_the_device(workers: int, *, pinned: bool, ahead: bool) -> None:
    with TrialRunner(make_workload(), 60.0) as runner:
        result = run(runner, make_gpu_config(workers, pinned=pinned, ahead=ahead))
    assert result.status == "completed", result.message
    assert result.measurement is not None
    assert result.measurement.peak_gpu_bytes > 0


def test_a_longer_step_of_the_device_makes_a_longer_epoch_that_waits_less() -> None:
    waits, ends = [], []
    for seconds in (1e-4, 2e-2):
        with TrialRunner(make_workload(None, seconds), 60.0) as runner:
            measured = run(runner, make_gpu_config()).measurement
        assert measured is not None
        ends.append(measured.epochs[-1].end_seconds)
        waits.append(measured.epochs[-1].wait_seconds / ends[-1])
    assert ends[1] > 2 * ends[0]
    assert waits[1] < waits[0]


def test_a_step_that_takes_more_and_more_memory_is_ended_at_its_budget() -> None:
    with TrialRunner(make_workload("make_hungry_step"), 60.0) as runner:
        result = run(runner, make_gpu_config())
    assert result.status == "out_of_memory", result.message
    assert "device memory" in result.message


def test_an_error_that_sticks_to_the_process_costs_one_trial_only() -> None:
    with TrialRunner(make_workload("make_step_out_of_range"), 60.0) as runner:
        first = run(runner, make_gpu_config())
        second = run(runner, make_gpu_config())
    assert first.status == "device_failed", first.message
    assert (
        second.status == first.status
    )  # by its own doing, in a process of its own: not "lost" by the first one's error


def test_the_probe_measures_the_way_to_the_device() -> None:
    with TrialRunner(make_workload(), 60.0) as runner:
        profile = runner.probe((32, 32), LIMITS)
    assert profile.accelerator is not None
    assert profile.h2d is not None
    assert profile.pinning
    assert profile.gpu_bytes.at(32) > 0
    assert profile.gpu_free_bytes > 0


def test_a_step_that_breaks_the_device_is_refused_with_its_error() -> None:
    request = TuningRequest(workload=make_workload("make_step_out_of_range"), search={"batch_size": (32,)}, trials=2)
    with pytest.raises(WorkloadError):
        tune(request)


def test_a_whole_run_gives_a_profile_of_this_device(workdir: Path) -> None:
    request = TuningRequest(
        workload=make_workload(),
        search={"batch_size": (32,)},
        trials=4,
        trial_seconds=1.0,
        output=str(workdir / "dltune.json"),
    )
    profile: TunedProfile = tune(request).profile
    assert profile.hardware.gpu is not None
    assert profile.result.copy_bound_bytes_per_second is not None
    assert load(workdir / "dltune.json").fit == "exact"
