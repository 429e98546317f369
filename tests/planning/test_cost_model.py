from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.planning.cost_model import (
    count_epoch_batches,
    find_bottleneck,
    max_useful_workers,
    predict_copy,
    predict_samples_per_second,
    predict_stage_times,
)
from autotune.protocol.workload_profile import H2DBandwidth, WorkloadProfile
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
def test_every_configuration_is_predicted_to_reach_something(
    workload: WorkloadProfile, config: LoaderConfig, cpus: float, epochs: int
) -> None:
    assert predict_samples_per_second(config, workload, cpus, epochs) > 0


@pytest.mark.parametrize("workers", [0, 1, 2, 8, 64])
def test_no_number_of_workers_is_predicted_to_beat_the_step(workers: int) -> None:
    workload = make_workload(step_cost=make_cost(0.0, 0.01))
    assert predict_samples_per_second(make_config(workers), workload, 64.0, epochs=10) <= 32 / 0.01


def test_without_workers_loading_and_stepping_take_turns() -> None:
    workload = make_workload(samples=320, load_cost=make_cost(1e-3), step_cost=make_cost(0.0, 8e-3))
    predicted = predict_samples_per_second(make_config(0), workload, 4.0, epochs=3)
    assert predicted == pytest.approx(32 / (32e-3 + 8e-3))


def test_samples_that_wait_are_predicted_to_gain_from_more_workers_than_cpus() -> None:
    workload = make_workload(samples=100_000, cpu_share=0.05, load_cost=make_cost(5e-3))
    few, many = (predict_samples_per_second(make_config(workers), workload, 2.0, 10) for workers in (2, 16))
    assert many > 5 * few


def test_samples_that_compute_are_predicted_to_gain_nothing_from_more_workers_than_cpus() -> None:
    workload = make_workload(samples=100_000, cpu_share=1.0, load_cost=make_cost(5e-3))
    few, many = (predict_samples_per_second(make_config(workers), workload, 2.0, 10) for workers in (2, 16))
    assert many <= 1.05 * few


def test_keeping_workers_is_predicted_to_pay_where_epochs_are_short() -> None:
    workload = make_workload(samples=64)
    kept = predict_samples_per_second(make_config(4, persistent_workers=True), workload, 4.0, epochs=10)
    restarted = predict_samples_per_second(make_config(4, persistent_workers=False), workload, 4.0, epochs=10)
    assert kept > 1.5 * restarted


def test_the_search_offers_waiting_samples_far_more_workers_than_cpus() -> None:
    waiting = make_workload(cpu_share=0.02, load_cost=make_cost(5e-3), step_cost=make_cost(0.0, 0.01))
    assert max_useful_workers(waiting, 32, usable_cpus=2.0) >= 16


def test_the_search_offers_computing_samples_about_as_many_workers_as_cpus() -> None:
    computing = make_workload(cpu_share=1.0, load_cost=make_cost(5e-3), step_cost=make_cost(0.0, 1e-3))
    assert 8 <= max_useful_workers(computing, 32, usable_cpus=8.0) <= 3 * 8


def test_a_slow_step_bounds_how_many_workers_are_worth_offering() -> None:
    fed_by_one = make_workload(cpu_share=0.0, load_cost=make_cost(1e-3), step_cost=make_cost(0.0, 1.0))
    assert max_useful_workers(fed_by_one, 32, usable_cpus=2.0) <= 4


@given(workload=WORKLOADS, size=st.integers(1, 512), cpus=st.floats(0.1, 128))
def test_the_search_always_reaches_beyond_the_cpus(workload: WorkloadProfile, size: int, cpus: float) -> None:
    assert max_useful_workers(workload, size, cpus) > cpus


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 4), (True, 3)])
def test_an_incomplete_last_batch_counts_unless_it_is_dropped(drop_last: bool, batches: int) -> None:
    assert count_epoch_batches(make_workload(samples=100, drop_last=drop_last), 32) == batches


def test_an_epoch_that_divides_evenly_has_no_last_batch_to_drop() -> None:
    assert count_epoch_batches(make_workload(samples=96, drop_last=True), 32) == 3


def test_the_users_own_batches_are_counted_as_they_are() -> None:
    assert count_epoch_batches(make_workload(samples=96, epoch_batches=7), 32) == 7


def test_data_of_unknown_length_has_no_count_of_batches() -> None:
    assert count_epoch_batches(make_workload(samples=None), 32) is None


@pytest.mark.parametrize(
    ("bottleneck", "workload", "workers", "wait_share"),
    [
        ("step", make_workload(), 4, 0.05),
        ("cpu", make_workload(cpu_share=1.0, load_cost=make_cost(5e-3)), 4, 0.8),
        ("io", make_workload(cpu_share=0.02, load_cost=make_cost(5e-3)), 4, 0.8),
        ("step", make_workload(load_cost=make_cost(1e-6), step_cost=make_cost(0.0, 0.05)), 0, 0.3),
        ("cpu", make_workload(cpu_share=1.0, load_cost=make_cost(5e-3)), 0, 0.9),
        ("io", make_workload(cpu_share=0.02, load_cost=make_cost(5e-3)), 0, 0.9),
        ("io", make_workload(cpu_share=0.02, load_cost=make_cost(1e-6), step_cost=make_cost(0.0, 0.05)), 0, 0.9),
        ("epoch", make_workload(load_cost=make_cost(1e-6), step_cost=make_cost(0.0, 0.05)), 4, 0.5),
    ],
)
def test_the_bottleneck_is_named_by_what_the_loader_would_need_more_of(
    bottleneck: str, workload: WorkloadProfile, workers: int, wait_share: float
) -> None:
    assert find_bottleneck(make_config(workers), workload, 4.0, wait_share) == bottleneck


def predict(workload: WorkloadProfile, **settings: bool) -> float:
    """Predict the seconds per batch of 16 workers on 64 CPUs."""
    flags = {name: settings.get(name, False) for name in ("pin_memory",)}
    process = ProcessSettings(non_blocking=flags["pin_memory"], device_prefetch=settings.get("device_prefetch", False))
    config = make_config(16, 2, 32, process=process, **flags)
    return predict_stage_times(config, workload, 64.0).training


def test_a_copy_and_the_step_take_turns_unless_the_copy_has_a_stream_of_its_own() -> None:
    workload = make_gpu_workload(step_cost=make_cost(0.0, 4e-3), transfer_cost=make_cost(0.0))
    pinned_copy, pageable_copy = 32e6 / 12e9, 32e6 / 4e9
    assert predict(workload) == pytest.approx(pageable_copy + 4e-3)
    assert predict(workload, pin_memory=True) == pytest.approx(pinned_copy + 4e-3)
    assert predict(workload, pin_memory=True, device_prefetch=True) == pytest.approx(4e-3)


def test_a_device_that_cannot_overlap_gains_nothing_from_copying_ahead() -> None:
    copies = H2DBandwidth(pageable=4e9, pinned=12e9, overlap=0.0)
    workload = make_gpu_workload(h2d=copies, transfer_cost=make_cost(0.0))
    ahead = predict(workload, pin_memory=True, device_prefetch=True)
    assert ahead == pytest.approx(predict(workload, pin_memory=True))


def test_taking_batches_over_hides_behind_the_device_but_not_behind_a_pageable_copy() -> None:
    workload = make_gpu_workload(step_cost=make_cost(0.0, 4e-3), transfer_cost=make_cost(0.0, 6e-3))
    assert predict(workload, pin_memory=True) == pytest.approx(32e6 / 12e9 + 4e-3)
    slow = make_gpu_workload(step_cost=make_cost(0.0, 1e-3), transfer_cost=make_cost(0.0, 20e-3))
    assert predict(slow) == pytest.approx(32e6 / 4e9 + 10e-3)


def test_a_run_whose_copies_take_longest_is_bound_by_them() -> None:
    workload = make_gpu_workload(step_cost=make_cost(0.0, 1e-3), transfer_cost=make_cost(0.0))
    assert find_bottleneck(make_config(16, pin_memory=True), workload, 64.0, 0.0) == "copy"
    slow_step = make_gpu_workload(step_cost=make_cost(0.0, 1e-1), transfer_cost=make_cost(0.0))
    assert find_bottleneck(make_config(16, pin_memory=True), slow_step, 64.0, 0.0) == "step"
    slow_load = make_gpu_workload(load_cost=make_cost(1e-2), cpu_share=0.0, transfer_cost=make_cost(0.0))
    assert find_bottleneck(make_config(2, pin_memory=True), slow_load, 64.0, 0.9) == "io"


def test_on_the_cpu_nothing_is_copied() -> None:
    assert predict_copy(make_config(2), make_workload()) == 0.0
