"""Training processes, and what their runs say."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from benchmarks.training.messages import Order, Trained, Workplace
from benchmarks.training.process import Stage, count_samples, prepare, train
from benchmarks.training.trainer import Trainer, TrainingError
from benchmarks.workloads.grid import make_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 7), (torch.zeros(3), torch.zeros(5)), [[torch.zeros(3)]], {"x": torch.zeros(3)}]
)
def test_samples_are_counted_by_the_first_tensor(batch: object) -> None:
    assert count_samples(batch) == 3


def test_a_short_run_lets_expect_a_long_one_whose_start_weighs_less() -> None:
    run = Trained(samples=300, epoch_seconds=(2.0, 1.0, 1.0))
    assert run.samples_per_second == 75
    assert run.extrapolate(10) == pytest.approx(1000 / 11)


def test_a_run_that_was_given_up_is_taken_as_it_is() -> None:
    assert Trained(samples=30, epoch_seconds=(2.0, 1.0), given_up=True).extrapolate(10) == 10


def make_stage(seconds: float = 0.0) -> Stage:
    return Stage(TensorDataset(torch.zeros(64, 2)), lambda batch: time.sleep(seconds), CPU)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_counts_samples_and_epochs(*, ahead: bool) -> None:
    config = make_config(16, 0, ahead=ahead)
    run = train(make_stage(0.002), Order(config=config, epochs=3))
    assert run.trained.samples == 3 * 64
    assert len(run.trained.epoch_seconds) == 3
    assert 0 <= run.waited_seconds < sum(run.trained.epoch_seconds)


def test_a_run_is_given_up_when_its_time_is_over() -> None:
    run = train(make_stage(0.02), Order(config=make_config(16, 0), epochs=9, max_seconds=0.03))
    assert run.trained.given_up
    assert run.trained.samples == 32


def make_workplace(**changes: Any) -> Workplace:
    usual: dict[str, Any] = {
        "dataset": "benchmarks.workloads.device_datasets:make_tabular",
        "dataset_args": {"samples": 64},
        "step": "benchmarks.workloads.device_steps:make_tabular_step",
        "device": "cpu",
        "batch_size": 16,
        "in_worker": False,
    }
    return Workplace(**usual | changes)


def test_everything_is_ready_before_a_run() -> None:
    stage = prepare(make_workplace())
    assert len(stage.dataset) == 64
    assert stage.device == CPU


@pytest.mark.slow
def test_a_training_process_says_when_it_is_ready_and_trains_when_told() -> None:
    trainer = Trainer(make_workplace())
    try:
        ready = trainer.await_ready()
        runs = [trainer.train(Order(config=make_config(16, workers), epochs=2)) for workers in (0, 1)]
    finally:
        trainer.close()
        trainer.close()
    assert ready.samples == 64
    assert ready.device.torch == torch.__version__
    assert [run.trained.samples for run in runs] == [128, 128]


@pytest.mark.slow
def test_a_training_process_that_fails_says_why() -> None:
    trainer = Trainer(make_workplace(step="benchmarks.workloads.device_steps:make_nothing"))
    try:
        with pytest.raises(TrainingError, match="make_nothing"):
            trainer.await_ready()
    finally:
        trainer.close()
