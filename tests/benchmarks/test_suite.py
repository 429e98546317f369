"""The suite with formulas in place of training processes and tuners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.config import LoaderConfig
from benchmarks.suite import format_results, is_resolved, measure, screen, simulate_worst_share
from benchmarks.training import DeviceFacts, Job, TrainingError, TrainingRun
from benchmarks.tuners import Choice, make_command
from benchmarks.workloads.catalogue import GPU_WORKLOADS, find_workload
from benchmarks.workloads.grid import make_config
from benchmarks.workloads.workload import BenchWorkload

DEVICE = DeviceFacts(name="Test CPU", torch="2.13.0", python="3.11.7")
SAMPLES = 1000


def rate(config: LoaderConfig) -> float:
    """Throughput that grows with workers up to 12, and fails with 24."""
    if config.dataloader.num_workers == 24:
        raise TrainingError("killed")
    return 100.0 * max(1, min(12, config.dataloader.num_workers))


def train_by_formula(job: Job) -> TrainingRun:
    seconds = (SAMPLES / rate(job.config),) * job.epochs
    return TrainingRun(device=DEVICE, samples=SAMPLES * job.epochs, epoch_seconds=seconds)


def choose_eight(workload: BenchWorkload) -> Choice:
    config = make_config(workload.batch_size, 8)
    return Choice(tuner="dltune", config=config, seconds=30.0, predicted=880.0, predicted_ci95=(790.0, 900.0))


def test_the_choice_is_compared_with_the_best_of_the_grid_and_the_prediction_with_whole_runs() -> None:
    result = measure(find_workload("tutorial"), 2, choose=(choose_eight,), train=train_by_formula)
    assert result.choice_share() == pytest.approx(8 / 12)
    assert result.prediction_ratio == pytest.approx(1.1)
    assert result.is_covered
    assert result.rate("defaults") == pytest.approx(100.0)
    assert "66.7%" in format_results([result])


def test_other_tuners_are_compared_with_the_same_grid_and_their_time_is_shown() -> None:
    def choose_four(workload: BenchWorkload) -> Choice:
        return Choice(tuner="random", config=make_config(workload.batch_size, 4), seconds=41.0)

    result = measure(find_workload("tutorial"), 1, choose=(choose_eight, choose_four), train=train_by_formula)
    assert result.choice_share("random") == pytest.approx(4 / 12)
    assert "random: median 33.3% of the grid's best, worst 33.3%, in 41 s." in format_results([result])


def test_even_a_perfect_choice_is_below_the_best_by_the_scatter_of_the_runs() -> None:
    result = measure(find_workload("tutorial"), 3, choose=(choose_eight,), train=train_by_formula)
    assert simulate_worst_share([result]) == 1.0
    scatter = (0.9, 1.0, 1.1)
    noisy = [
        one.model_copy(update={"samples_per_second": tuple(one.rate * factor for factor in scatter)})
        for one in result.measured
    ]
    one = result.model_copy(update={"measured": tuple(noisy)})
    assert 0.7 < simulate_worst_share([one] * 12) < simulate_worst_share([one]) < 1.0


def test_runs_that_scatter_are_repeated_and_the_defaults_are_not() -> None:
    assert is_resolved([(100.0, 100.0, 100.0), (130.0, 131.0, 129.0)])
    assert not is_resolved([(100.0, 100.0, 100.0), (110.0, 100.0, 91.0)])
    assert not is_resolved([(100.0,), (100.0,)])
    assert is_resolved([(100.0,)])
    rounds = iter(range(1000))

    def train(job: Job) -> TrainingRun:
        run = train_by_formula(job)
        scatter = 1.0 + 0.2 * (next(rounds) % 2)
        return run.model_copy(update={"epoch_seconds": tuple(scatter * one for one in run.epoch_seconds)})

    result = measure(find_workload("tutorial"), 3, choose=(choose_eight,), train=train)
    counts = {label: len(one.samples_per_second) for one in result.measured for label in one.labels}
    assert counts == {"dltune": 9, "defaults": 3, "CPUs": 3, "grid 1": 9, "grid 2": 9}


def test_without_a_grid_the_choice_is_compared_with_the_defaults_alone() -> None:
    result = measure(find_workload("tutorial"), 1, with_grid=False, choose=(choose_eight,), train=train_by_formula)
    assert result.choice_share() is None
    assert {label for one in result.measured for label in one.labels} == {"dltune", "defaults", "CPUs"}


def test_a_configuration_that_fails_is_left_out_of_the_grid() -> None:
    configs = [make_config(32, workers) for workers in (4, 24)]
    assert list(screen(find_workload("tutorial"), configs, train_by_formula)) == configs[:1]


def test_the_command_is_that_of_a_user() -> None:
    workload = replace(find_workload("tutorial"), dataset_args={"samples": 64})
    command = " ".join(make_command(workload))
    assert "--dataset examples.tutorial:make_dataset --batch-size 32" in command
    assert "--step-time 10ms" in command
    assert "--arg samples=64" in command
    assert "--sampler" not in command
    assert make_command(workload, "tpe")[-5:-1] == ["--sampler", "tpe", "--timeout", "45s"]


def test_a_real_step_on_a_device_is_given_by_its_name() -> None:
    command = make_command(GPU_WORKLOADS[0])
    assert command[command.index("--device") + 1] == "cuda"
    assert command[command.index("--step") + 1].endswith(":make_jpeg_step")
