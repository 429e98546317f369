from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.search.cost_model import (
    find_bottleneck,
    max_useful_workers,
    predict_stages,
    predict_throughput,
)
from tests.builders import make_config, make_cost, make_gpu_workload, make_workload

WORKLOADS = st.builds(
    make_workload,
    samples=st.none() | st.integers(1, 10**6),
    drop_last=st.booleans(),
    load_cost=st.builds(make_cost, st.floats(0, 1), st.floats(0, 1)),
    step_cost=st.builds(make_cost, st.floats(0, 1), st.floats(0, 1)),
    cpu_share=st.floats(0, 1),
    sample_bytes=st.integers(0, 2**24),
)
CONFIGS = st.builds(
    make_config,
    num_workers=st.integers(0, 64),
    prefetch_factor=st.integers(1, 8),
    batch_size=st.none() | st.integers(1, 512),
)


@example(make_workload(samples=50, drop_last=True), make_config(0, batch_size=64), 2.0, 10)
@given(workload=WORKLOADS, config=CONFIGS, cpus=st.floats(0.1, 128), epochs=st.integers(1, 1000))
def test_the_throughput_of_every_configuration_is_positive_and_below_the_upper_bound(
    workload: WorkloadProfile, config: LoaderConfig, cpus: float, epochs: int
) -> None:
    size = config.dataloader.batch_size or workload.probe_batch_size
    rate = predict_throughput(config, workload, cpus, epochs)
    assert rate > 0
    assert rate * workload.step_cost.at(size) <= size * (1 + 1e-9)


def test_without_workers_loading_and_the_step_alternate() -> None:
    workload = make_workload(samples=320, load_cost=make_cost(1e-3), step_cost=make_cost(0.0, 8e-3))
    predicted = predict_throughput(make_config(0), workload, 4.0, epochs=3)
    assert predicted == pytest.approx(32 / (32e-3 + 8e-3))


@pytest.mark.parametrize(("cpu_share", "low", "high"), [(0.05, 5, 8), (1.0, 0.5, 1.05)])
def test_samples_that_wait_gain_from_more_workers_than_cpus_and_samples_that_compute_do_not(
    cpu_share: float, low: float, high: float
) -> None:
    workload = make_workload(samples=100_000, cpu_share=cpu_share, load_cost=make_cost(5e-3))
    few, many = (predict_throughput(make_config(workers), workload, 2.0, 10) for workers in (2, 16))
    assert low <= many / few <= high


def test_workers_that_start_shared_memory_managers_lose_in_short_runs() -> None:
    config, workload = make_config(8), make_workload(samples=640)
    managed = config.model_copy(update={"process": ProcessSettings(sharing_strategy="file_system")})
    assert predict_throughput(managed, workload, 4.0, 10) < predict_throughput(config, workload, 4.0, 10)


def test_persistent_workers_gain_if_epochs_are_short() -> None:
    kept, restarted = (
        predict_throughput(make_config(4, persistent_workers=is_kept), make_workload(samples=64), 4.0, 10)
        for is_kept in (True, False)
    )
    assert kept > 1.5 * restarted


@pytest.mark.parametrize(
    ("cpu_share", "load", "step", "cpus", "low", "high"),
    [(0.02, 5e-3, 0.01, 2.0, 16, 99), (1.0, 5e-3, 1e-3, 8.0, 8, 24), (0.0, 1e-3, 1.0, 2.0, 3, 4)],
    ids=["waiting samples", "computing samples", "slow step"],
)
def test_the_workers_that_are_searched_follow_from_the_workload(
    cpu_share: float, load: float, step: float, cpus: float, low: int, high: int
) -> None:
    workload = make_workload(cpu_share=cpu_share, load_cost=make_cost(load), step_cost=make_cost(0.0, step))
    assert low <= max_useful_workers(workload, 32, cpus) <= high


CHEAP, SLOW_STEP = make_cost(1e-6), make_cost(0.0, 0.05)
NO_TRANSFER = make_cost(0.0)


@pytest.mark.parametrize(
    ("bottleneck", "workload", "config", "wait_share"),
    [
        ("step", make_workload(), make_config(4), 0.05),
        ("cpu", make_workload(cpu_share=1.0, load_cost=make_cost(5e-3)), make_config(4), 0.8),
        ("io", make_workload(cpu_share=0.02, load_cost=make_cost(5e-3)), make_config(4), 0.8),
        ("step", make_workload(load_cost=CHEAP, step_cost=SLOW_STEP), make_config(0), 0.3),
        ("cpu", make_workload(cpu_share=1.0, load_cost=make_cost(5e-3)), make_config(0), 0.9),
        ("io", make_workload(cpu_share=0.02, load_cost=make_cost(5e-3)), make_config(0), 0.9),
        ("io", make_workload(cpu_share=0.02, load_cost=CHEAP, step_cost=SLOW_STEP), make_config(0), 0.9),
        ("epoch", make_workload(load_cost=CHEAP, step_cost=SLOW_STEP), make_config(4), 0.5),
        ("copy", make_gpu_workload(step_cost=make_cost(0.0, 1e-3), transfer_cost=NO_TRANSFER), make_config(16), 0.0),
        ("step", make_gpu_workload(step_cost=make_cost(0.0, 1e-1), transfer_cost=NO_TRANSFER), make_config(16), 0.0),
        (
            "io",
            make_gpu_workload(load_cost=make_cost(1e-2), cpu_share=0.0, transfer_cost=NO_TRANSFER),
            make_config(2, pin_memory=True),
            0.9,
        ),
    ],
)
def test_the_bottleneck_is_the_slowest_stage(
    bottleneck: str, workload: WorkloadProfile, config: LoaderConfig, wait_share: float
) -> None:
    cpus = 64.0 if workload.h2d else 4.0
    assert find_bottleneck(config, workload, cpus, wait_share) == bottleneck


def test_the_start_of_epochs_is_no_bottleneck_of_a_throughput_without_it() -> None:
    workload = make_workload(load_cost=CHEAP, step_cost=SLOW_STEP, transfer_cost=NO_TRANSFER)
    assert find_bottleneck(make_config(4), workload, 4.0, 0.5, has_epochs=False) == "cpu"


def predict(workload: WorkloadProfile, *, pinned: bool = False, ahead: bool = False) -> float:
    """Predict the seconds per batch of 16 workers on 64 CPUs."""
    process = ProcessSettings(non_blocking=pinned, device_prefetch=ahead)
    return predict_stages(make_config(16, 2, 32, process, pin_memory=pinned), workload, 64.0)[0]


def test_a_copy_and_the_step_alternate_unless_the_copy_has_a_stream_of_its_own() -> None:
    workload = make_gpu_workload(step_cost=make_cost(0.0, 4e-3), transfer_cost=NO_TRANSFER)
    assert predict(workload) == pytest.approx(32e6 / 4e9 + 4e-3)
    assert predict(workload, pinned=True) == pytest.approx(32e6 / 12e9 + 4e-3)
    assert predict(workload, pinned=True, ahead=True) == pytest.approx(4e-3)


def test_receiving_batches_overlaps_with_the_device_but_not_with_a_pageable_copy() -> None:
    workload = make_gpu_workload(step_cost=make_cost(0.0, 4e-3), transfer_cost=make_cost(0.0, 6e-3))
    assert predict(workload, pinned=True) == pytest.approx(32e6 / 12e9 + 4e-3)
    slow = make_gpu_workload(step_cost=make_cost(0.0, 1e-3), transfer_cost=make_cost(0.0, 20e-3))
    assert predict(slow) == pytest.approx(32e6 / 4e9 + 10e-3)
