from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.planning.resources import (
    PAGE_BYTES,
    ResourceDemand,
    ResourceModel,
    count_live_batches,
)
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.measurement import TrialResult
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_gpu_workload,
    make_limits,
    make_machine,
    make_request,
    make_result,
    make_workload,
)

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


def make_model(sample_bytes: int = 4096, batch_tensors: int = 2, base_bytes: int = 256 * MIB) -> ResourceModel:
    return ResourceModel(make_workload(sample_bytes=sample_bytes, batch_tensors=batch_tensors, rss_bytes=base_bytes))


def learn(model: ResourceModel, result: TrialResult) -> ResourceModel:
    gpu_bytes = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
    return model.learn(result.config, result.peak_host_bytes, result.peak_shm_bytes, gpu_bytes)


CONFIGS = st.builds(
    make_config,
    num_workers=st.integers(0, 64),
    prefetch_factor=st.integers(1, 16),
    batch_size=st.none() | st.integers(1, 4096),
    process=st.sampled_from([ProcessSettings(), FILE_SYSTEM]),
)
MODELS = st.builds(
    make_model, sample_bytes=st.integers(0, 2**24), batch_tensors=st.integers(0, 200), base_bytes=st.integers(0, 2**33)
)


@given(model=MODELS, config=CONFIGS)
def test_the_demand_of_any_configuration_can_be_predicted(model: ResourceModel, config: LoaderConfig) -> None:
    demand = model.predict(config)
    assert demand.memory_bytes >= model.workload.rss_bytes + demand.shm_bytes


@given(
    workers=st.integers(1, 32),
    prefetch=st.integers(1, 8),
    size=st.integers(1, 512),
    sample_bytes=st.integers(1, 2**20),
    tensors=st.integers(1, 50),
)
def test_shared_memory_holds_every_live_batch_in_whole_pages_for_each_tensor(
    workers: int, prefetch: int, size: int, sample_bytes: int, tensors: int
) -> None:
    demand = make_model(sample_bytes, tensors).predict(make_config(workers, prefetch, size))
    data = size * sample_bytes
    live = workers * prefetch + 2
    assert live * data <= demand.shm_bytes <= live * (data + (tensors + 1) * PAGE_BYTES)


def test_tensors_smaller_than_a_page_take_a_page_each() -> None:
    demand = make_model(sample_bytes=8, batch_tensors=3).predict(make_config(2, 2, 16))
    assert demand.shm_bytes >= count_live_batches(make_config(2, 2, 16)) * 3 * PAGE_BYTES


def test_without_workers_nothing_is_shared() -> None:
    demand = make_model().predict(make_config(0))
    assert demand.shm_bytes == 0
    assert demand.memory_bytes > 256 * MIB


@given(config=CONFIGS.filter(lambda config: config.dataloader.num_workers > 0), model=MODELS)
def test_one_more_worker_never_needs_less(config: LoaderConfig, model: ResourceModel) -> None:
    loader = config.dataloader.model_copy(update={"num_workers": config.dataloader.num_workers + 1})
    less, more = model.predict(config), model.predict(config.model_copy(update={"dataloader": loader}))
    assert more.memory_bytes > less.memory_bytes
    assert more.shm_bytes >= less.shm_bytes
    assert more.files > less.files


def test_only_the_file_descriptor_strategy_holds_a_file_for_each_tensor_in_flight() -> None:
    model = make_model(batch_tensors=10)
    by_descriptor = model.predict(make_config(8, 4))
    by_name = model.predict(make_config(8, 4, process=FILE_SYSTEM))
    assert by_descriptor.files - by_name.files == 10 * (8 * 4 + 2)


def test_own_batches_are_predicted_at_the_size_the_probe_saw() -> None:
    model = make_model()
    assert model.predict(make_config(2, batch_size=None)) == model.predict(make_config(2, batch_size=32))


def test_every_broken_limit_is_listed_with_the_number_against_it() -> None:
    demand = ResourceDemand(memory_bytes=9 * GIB, shm_bytes=5 * GIB, files=2000)
    assert demand.describe_excess(make_limits()) == (
        "host memory: 9.0 GiB needed of 8.0 GiB; /dev/shm: 5.0 GiB needed of 4.0 GiB; open files: 2,000 needed of 1,024"
    )


def test_a_demand_that_just_fits_breaks_nothing() -> None:
    budgets = make_limits()
    demand = ResourceDemand(memory_bytes=budgets.memory_bytes, shm_bytes=budgets.shm_bytes, files=budgets.nofile)
    assert not demand.describe_excess(budgets)


@given(
    demand=st.builds(
        ResourceDemand, memory_bytes=st.integers(0, 2**40), shm_bytes=st.integers(0, 2**40), files=st.integers(0, 2**20)
    ),
    memory=st.integers(1, 2**40),
    shm=st.integers(0, 2**40),
    files=st.integers(1, 2**20),
)
def test_constraints_are_positive_exactly_where_a_limit_is_broken(
    demand: ResourceDemand, memory: int, shm: int, files: int
) -> None:
    budgets = make_limits(memory_bytes=memory, shm_bytes=max(1, shm), nofile=files)
    broken = {one.partition(":")[0] for one in demand.describe_excess(budgets).split("; ") if one}
    positive = {key for key, value in demand.constraints(budgets).items() if value > 0}
    names = {"host memory": "memory", "/dev/shm": "shm", "open files": "files"}
    assert {names[resource] for resource in broken} == positive


@given(
    model=MODELS,
    config=CONFIGS.filter(lambda config: config.dataloader.num_workers > 0),
    extra=st.integers(-(2**32), 2**36),
)
def test_a_learned_model_would_have_predicted_at_least_what_was_used(
    model: ResourceModel, config: LoaderConfig, extra: int
) -> None:
    expected = model.predict(config)
    peak = max(1, expected.memory_bytes + extra)
    result = make_result(config, 100.0, peak_host_bytes=peak, peak_shm_bytes=expected.shm_bytes)
    assert learn(model, result).predict(config).memory_bytes >= peak


def test_a_modest_trial_never_makes_the_prediction_smaller() -> None:
    model = make_model()
    config = make_config(4)
    assert learn(model, make_result(config, 100.0, peak_host_bytes=300 * MIB)) == model


def test_a_failed_trial_teaches_what_it_used_before_it_was_ended() -> None:
    model = make_model()
    config = make_config(4)
    learned = learn(model, make_result(config, kind="out_of_memory", peak_host_bytes=9 * GIB))
    assert learned.predict(config).describe_excess(make_limits(memory_bytes=8 * GIB))


@pytest.mark.parametrize("config", [make_config(0), make_config(4)])
def test_trials_without_workers_or_samples_of_memory_teach_nothing(config: LoaderConfig) -> None:
    peak = 8 * GIB if config.dataloader.num_workers == 0 else 0
    model = make_model()
    assert learn(model, make_result(config, 100.0, peak_host_bytes=peak)) is model


def test_a_read_only_shm_has_no_budget_however_large_it_is() -> None:
    budgets = plan_budgets(make_machine(shm_writable=False), make_request())
    assert budgets.shm_bytes == 0
    assert make_model().predict(make_config(1, 1, 1)).describe_excess(budgets)


def test_device_memory_grows_with_the_batch_and_is_held_against_its_budget() -> None:
    model = ResourceModel(make_gpu_workload())
    demand = model.predict(make_config(0, batch_size=128))
    assert demand.gpu_bytes == GIB + 128 * 8 * MIB
    assert not demand.describe_excess(make_limits(memory_bytes=64 * GIB, gpu_bytes=2 * GIB))
    excess = demand.describe_excess(make_limits(memory_bytes=64 * GIB, gpu_bytes=2 * GIB - 1))
    assert excess == "device memory: 2.0 GiB needed of 2.0 GiB"
    assert demand.constraints(make_limits(gpu_bytes=GIB))["gpu"] > 0


def test_on_the_cpu_device_memory_breaks_nothing() -> None:
    model = ResourceModel(make_gpu_workload())
    assert not model.predict(make_config(0, batch_size=8)).describe_excess(make_limits(memory_bytes=64 * GIB))


def test_a_batch_copied_ahead_takes_device_memory_as_well() -> None:
    model = ResourceModel(make_gpu_workload())
    ahead = ProcessSettings(non_blocking=True, device_prefetch=True)
    plain, prefetched = (model.predict(make_config(process=one)).gpu_bytes for one in (ProcessSettings(), ahead))
    assert prefetched >= plain + 2 * 32 * 1_000_000


def test_pinned_batches_are_rounded_up_to_powers_of_two() -> None:
    model = ResourceModel(make_gpu_workload(batch_tensors=1))
    config = make_config(2, 2, 34, pin_memory=True)  # 34 MB take a block of 64 MiB each, six of them may live
    pageable = make_config(2, 2, 34)
    more = model.predict(config).memory_bytes - model.predict(pageable).memory_bytes
    assert more == 6 * 64 * MIB - model.predict(pageable).shm_bytes


def test_pinning_costs_nothing_where_it_has_no_effect() -> None:
    model = make_model(sample_bytes=MIB)
    assert model.predict(make_config(2, pin_memory=True)) == model.predict(make_config(2))


def test_a_trial_that_held_more_device_memory_than_expected_raises_the_prediction() -> None:
    model = ResourceModel(make_gpu_workload())
    config = make_config(0, batch_size=64)
    result = make_result(config, 100.0)
    assert result.measurement is not None
    measured = result.measurement.model_copy(update={"peak_gpu_bytes": 9 * GIB})
    learned = learn(model, result.model_copy(update={"measurement": measured}))
    assert learned.predict(config).gpu_bytes == 9 * GIB
    assert learn(learned, result) is learned


def learn_beyond(model: ResourceModel, workers: int, extra_bytes: int) -> ResourceModel:
    """Have a model learn of a trial that used so much more than it starts out to predict."""
    config = make_config(workers)
    expected = make_model().predict(config)
    peak = expected.memory_bytes + extra_bytes
    return learn(model, make_result(config, 100.0, peak_host_bytes=peak, peak_shm_bytes=expected.shm_bytes))


def predict_beyond(model: ResourceModel, workers: int) -> int:
    """Give what a model predicts beyond what it starts out to predict."""
    config = make_config(workers)
    return model.predict(config).memory_bytes - make_model().predict(config).memory_bytes


def test_what_the_training_process_cached_beside_one_worker_is_not_multiplied_by_the_workers() -> None:
    learned = learn_beyond(make_model(), workers=1, extra_bytes=500 * MIB)
    assert predict_beyond(learned, 1) == 500 * MIB
    assert predict_beyond(learned, 16) == 500 * MIB


def test_two_trials_tell_what_each_worker_takes_from_what_the_training_process_takes() -> None:
    learned = learn_beyond(make_model(), workers=2, extra_bytes=(100 + 2 * 50) * MIB)
    learned = learn_beyond(learned, workers=8, extra_bytes=(100 + 8 * 50) * MIB)
    assert [predict_beyond(learned, workers) for workers in (2, 4, 8)] == [200 * MIB, 300 * MIB, 500 * MIB]
    assert predict_beyond(learned, 16) == 900 * MIB


def test_a_trial_with_many_workers_that_used_too_much_does_not_rule_out_a_few() -> None:
    learned = learn_beyond(make_model(), workers=8, extra_bytes=8 * GIB)
    assert predict_beyond(learned, 8) == 8 * GIB
    assert predict_beyond(learned, 2) == 2 * GIB


@given(seen=st.lists(st.tuples(st.integers(1, 32), st.integers(-(2**28), 2**36)), max_size=6))
def test_whatever_trials_taught_each_of_them_would_have_been_predicted_and_more_workers_never_need_less(
    seen: list[tuple[int, int]],
) -> None:
    model = make_model()
    for workers, extra in seen:
        model = learn_beyond(model, workers, extra)
    assert all(predict_beyond(model, workers) >= extra for workers, extra in seen)
    needed = [model.predict(make_config(workers)).memory_bytes for workers in range(1, 34)]
    assert needed == sorted(needed)
