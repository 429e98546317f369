"""Training runs of the benchmarks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.training import DeviceFacts, Job, TrainingError, TrainingRun, count_samples, run_training, train
from benchmarks.workloads.grid import make_config

DEVICE = DeviceFacts(name="Test CPU", torch="2.13.0", python="3.11.7")


@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 7), (torch.zeros(3), torch.zeros(5)), [[torch.zeros(3)]], {"x": torch.zeros(3)}]
)
def test_samples_are_counted_by_the_first_tensor(batch: object) -> None:
    assert count_samples(batch) == 3


def make_run(**changes: Any) -> TrainingRun:
    return TrainingRun(**{"device": DEVICE, "samples": 300, "epoch_seconds": (2.0, 1.0, 1.0)} | changes)


def test_the_first_epoch_weighs_less_in_a_longer_run() -> None:
    assert make_run().extrapolate(3) == pytest.approx(75)
    assert make_run().extrapolate(10) == pytest.approx(1000 / 11)


def test_a_run_that_was_given_up_is_not_extrapolated() -> None:
    assert make_run(samples=30, epoch_seconds=(2.0, 1.0), given_up=True).extrapolate(10) == 10


def make_job(**changes: Any) -> Job:
    usual: dict[str, Any] = {
        "dataset": "benchmarks.workloads.on_device:make_tabular",
        "dataset_args": {"samples": 64},
        "config": make_config(16, 0),
        "epochs": 3,
    }
    return Job(**usual | changes)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_counts_samples_and_epochs(*, ahead: bool) -> None:
    run = train(make_job(config=make_config(16, 0, ahead=ahead)))
    assert run.samples == 3 * 64
    assert len(run.epoch_seconds) == 3


def test_a_run_is_given_up_within_an_epoch_when_its_time_is_over() -> None:
    run = train(make_job(step_seconds=0.4, epochs=9, max_seconds=0.6))
    assert run.given_up
    assert run.samples == 32


def test_a_slow_run_trains_as_many_epochs_as_it_must() -> None:
    run = train(make_job(step_seconds=0.01, epochs=9, min_epochs=2, enough_seconds=0.01))
    assert (len(run.epoch_seconds), run.given_up) == (2, False)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_process_warms_its_step_up_on_a_device_and_trains(workers: int) -> None:
    step = "benchmarks.workloads.on_device:make_tabular_step"
    run = run_training(make_job(step=step, device="cpu", config=make_config(16, workers), epochs=2))
    assert run.samples == 128
    assert run.device.torch == torch.__version__


@pytest.mark.slow
def test_the_error_of_a_failed_process_is_reported() -> None:
    with pytest.raises(TrainingError, match="make_nothing"):
        run_training(make_job(step="benchmarks.workloads.on_device:make_nothing"))
