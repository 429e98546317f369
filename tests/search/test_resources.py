from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.protocol.measurement import TrialResult
from autotune.search.cost_model import PAGE_BYTES, ResourceDemand, ResourceModel
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_gpu_workload,
    make_limits,
    make_measurement_of,
    make_workload,
)

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


def make_model(sample_bytes: int = 4096, batch_tensors: int = 2, base_bytes: int = 256 * MIB) -> ResourceModel:
    return ResourceModel(make_workload(sample_bytes=sample_bytes, batch_tensors=batch_tensors, rss_bytes=base_bytes))


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
def test_more_workers_never_need_less(model: ResourceModel, config: LoaderConfig) -> None:
    loader = config.dataloader.model_copy(update={"num_workers": config.dataloader.num_workers + 1})
    less, more = model.predict(config), model.predict(config.model_copy(update={"dataloader": loader}))
    assert less.memory_bytes >= model.workload.rss_bytes + less.shm_bytes
    if config.dataloader.num_workers:
        assert more.memory_bytes > less.memory_bytes
        assert more.files > less.files
    assert more.shm_bytes >= less.shm_bytes


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
    shm_bytes = make_model(sample_bytes, tensors).predict(make_config(workers, prefetch, size)).shm_bytes
    data, live = size * sample_bytes, workers * prefetch + 2
    assert live * max(data, tensors * PAGE_BYTES) <= shm_bytes <= live * (data + (tensors + 1) * PAGE_BYTES)


def test_only_the_file_descriptor_strategy_holds_a_file_for_each_live_tensor() -> None:
    model = make_model(batch_tensors=10)
    by_descriptor, by_name = (model.predict(make_config(8, 4, process=one)) for one in (ProcessSettings(), FILE_SYSTEM))
    assert by_descriptor.files - by_name.files == 10 * (8 * 4 + 2)


def test_the_users_own_batches_have_the_size_that_was_profiled() -> None:
    model = make_model()
    assert model.predict(make_config(2, batch_size=None)) == model.predict(make_config(2, batch_size=32))


def test_every_exceeded_limit_is_listed_with_the_number_against_it() -> None:
    demand = ResourceDemand(memory_bytes=9 * GIB, shm_bytes=5 * GIB, files=2000)
    assert demand.describe_excess(make_limits()) == (
        "host memory: 9.0 GiB needed of 8.0 GiB; /dev/shm: 5.0 GiB needed of 4.0 GiB; open files: 2,000 needed of 1,024"
    )


def test_device_memory_grows_with_the_batch_and_with_copies_in_advance() -> None:
    model = ResourceModel(make_gpu_workload())
    demand = model.predict(make_config(0, batch_size=128))
    assert demand.gpu_bytes == GIB + 128 * 8 * MIB
    assert not demand.describe_excess(make_limits(memory_bytes=64 * GIB, gpu_bytes=2 * GIB))
    excess = demand.describe_excess(make_limits(memory_bytes=64 * GIB, gpu_bytes=2 * GIB - 1))
    assert excess == "device memory: 2.0 GiB needed of 2.0 GiB"
    assert demand.constraints(make_limits(gpu_bytes=GIB))["gpu"] > 0
    ahead = ProcessSettings(non_blocking=True, device_prefetch=True)
    plain, prefetched = (model.predict(make_config(process=one)).gpu_bytes for one in (ProcessSettings(), ahead))
    assert prefetched >= plain + 2 * 32 * 1_000_000


def test_on_the_cpu_device_memory_has_no_limit() -> None:
    demand, budgets = ResourceModel(make_gpu_workload()).predict(make_config(0)), make_limits(memory_bytes=64 * GIB)
    assert not demand.describe_excess(budgets)
    assert demand.constraints(budgets)["gpu"] == -1.0


def test_pinned_batches_are_rounded_up_to_powers_of_two() -> None:
    model = ResourceModel(make_gpu_workload(batch_tensors=1))
    pinned, pageable = (model.predict(make_config(2, 2, 34, pin_memory=pin)) for pin in (True, False))
    assert pinned.memory_bytes - pageable.memory_bytes == 6 * 64 * MIB - pageable.shm_bytes  # six batches of 34 MB
    assert make_model().predict(make_config(2, pin_memory=True)) == make_model().predict(make_config(2))


def make_peaks(config: LoaderConfig, host_bytes: int, shm_bytes: int = 0, gpu_bytes: int = 0) -> TrialResult:
    """Build a trial with these peaks."""
    measurement = make_measurement_of(100.0).model_copy(update={"peak_gpu_bytes": gpu_bytes})
    peaks = {"peak_host_bytes": host_bytes, "peak_shm_bytes": shm_bytes}
    return TrialResult(status="completed", config=config, measurement=measurement, **peaks)


def learn_beyond(model: ResourceModel, workers: int, extra_bytes: int) -> ResourceModel:
    """Return a model that learned from a trial that used so much more than an untaught model predicts."""
    config = make_config(workers)
    expected = make_model().predict(config)
    return model.learn(make_peaks(config, expected.memory_bytes + extra_bytes, expected.shm_bytes))


def predict_beyond(model: ResourceModel, workers: int) -> int:
    """Return how much more a model predicts than an untaught one."""
    config = make_config(workers)
    return model.predict(config).memory_bytes - make_model().predict(config).memory_bytes


@pytest.mark.parametrize(("workers", "peak"), [(4, 300 * MIB), (4, 0), (0, 8 * GIB)])
def test_small_and_unknown_peaks_and_trials_without_workers_correct_nothing(workers: int, peak: int) -> None:
    assert make_model().learn(make_peaks(make_config(workers), peak)) == make_model()


def test_device_memory_beyond_the_prediction_is_learned() -> None:
    learned = make_model().learn(make_peaks(make_config(4), 0, gpu_bytes=9 * GIB))
    assert learned.predict(make_config(4)).gpu_bytes == 9 * GIB


def test_memory_that_the_main_process_cached_is_not_multiplied_by_the_workers() -> None:
    learned = learn_beyond(make_model(), workers=1, extra_bytes=500 * MIB)
    assert [predict_beyond(learned, workers) for workers in (1, 16)] == [500 * MIB] * 2


def test_two_trials_separate_the_memory_of_each_worker_from_that_of_the_main_process() -> None:
    learned = learn_beyond(make_model(), workers=2, extra_bytes=(100 + 2 * 50) * MIB)
    learned = learn_beyond(learned, workers=8, extra_bytes=(100 + 8 * 50) * MIB)
    assert [predict_beyond(learned, count) // MIB for count in (2, 4, 8, 16)] == [200, 300, 500, 900]


def test_a_trial_with_many_workers_that_used_too_much_does_not_exclude_a_few() -> None:
    learned = learn_beyond(make_model(), workers=8, extra_bytes=8 * GIB)
    assert [predict_beyond(learned, count) // GIB for count in (2, 8)] == [2, 8]


@given(seen=st.lists(st.tuples(st.integers(1, 32), st.integers(-(2**28), 2**36)), max_size=6))
def test_after_any_trials_each_of_them_is_predicted_and_more_workers_never_need_less(
    seen: list[tuple[int, int]],
) -> None:
    model = make_model()
    for workers, extra in seen:
        model = learn_beyond(model, workers, extra)
    assert all(predict_beyond(model, workers) >= extra for workers, extra in seen)
    needed = [model.predict(make_config(workers)).memory_bytes for workers in range(1, 34)]
    assert needed == sorted(needed)
