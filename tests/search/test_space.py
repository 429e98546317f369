from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.profiles.schema import Budgets
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.request import TuningRequest, ValueRange
from autotune.search.space import SearchSpace, list_requested_sizes, plan_space
from autotune.settings import SETTINGS
from autotune.system.machine import MachineProfile
from benchmarks.traces import make_space
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_cost,
    make_gpu_workload,
    make_limits,
    make_machine,
    make_request,
    make_workload,
)

WAITING = make_workload(samples=100_000, cpu_share=0.01, load_cost=make_cost(5e-3), pinning=True)


def plan(
    request: TuningRequest | None = None,
    workload: WorkloadProfile = WAITING,
    machine: MachineProfile | None = None,
    budgets: Budgets | None = None,
) -> SearchSpace:
    machine, request = machine or make_machine(), request or make_request()
    return plan_space(request, machine, workload, budgets or plan_budgets(machine, request))


FULL = plan()
NUMBERS = st.none() | st.booleans() | st.integers(-10, 10_000) | st.sampled_from(["file_system", "file_descriptor"])
PARAMS = st.dictionaries(st.sampled_from(list(SETTINGS)), NUMBERS)


@given(params=PARAMS)
def test_any_parameters_build_a_legal_configuration_of_the_space(params: dict[str, Any]) -> None:
    config = FULL.from_params(params)
    loader = config.dataloader
    assert loader.num_workers in FULL.choices["num_workers"]
    assert loader.batch_size in FULL.choices["batch_size"]
    if loader.num_workers:
        assert loader.prefetch_factor in FULL.choices["prefetch_factor"]
    assert FULL.from_params(FULL.to_params(config)) == FULL.nearest(config) == config


@given(workers=st.integers(-5, 100))
def test_a_number_between_two_choices_becomes_the_nearest(workers: int) -> None:
    space = make_space(batch_size=(32,), num_workers=(0, 4, 10, 32))
    built = space.from_params({"num_workers": workers}).dataloader.num_workers
    assert all(abs(built - workers) <= abs(choice - workers) for choice in space.choices["num_workers"])


def test_all_configurations_of_a_space_are_listed_once() -> None:
    space = make_space(batch_size=(16, 32), num_workers=(0, 2), prefetch_factor=(2, 4), pin_memory=(False,))
    assert len(space.configs) == len(set(space.configs))
    without, having = 2, 2 * 2 * 2 * 2 * 2  # batch sizes; times prefetch, persistence, order and strategy
    assert len(space.configs) == without + having


def test_the_start_method_of_the_workload_is_kept_in_every_configuration() -> None:
    space = plan(workload=make_workload(multiprocessing_context="spawn"))
    assert {config.process.multiprocessing_context for config in space.configs} == {"spawn"}
    assert space.from_params({"num_workers": 2}).process.multiprocessing_context == "spawn"


def test_a_fixed_setting_has_one_value_and_is_not_searched() -> None:
    space = plan(make_request(fixed={"num_workers": 5, "in_order": True, "sharing_strategy": "file_system"}))
    assert {"num_workers", "in_order", "sharing_strategy"}.isdisjoint(space.searched())
    built = space.from_params({"num_workers": 8, "in_order": False})
    assert (built.dataloader.num_workers, built.dataloader.in_order) == (5, True)
    assert built.process.sharing_strategy == "file_system"


DECIDED = make_workload(
    loader_class="pkg.Own",
    fixed_settings={"prefetch_factor": 5, "persistent_workers": True, "batch_size": 48, "num_workers": 4},
)


def test_a_setting_of_the_users_loader_is_not_searched() -> None:
    space = plan(workload=DECIDED)
    assert {"prefetch_factor", "persistent_workers", "batch_size", "num_workers"}.isdisjoint(space.searched())
    built = space.from_params({"num_workers": 2, "prefetch_factor": 2, "batch_size": 64}).dataloader
    assert (built.num_workers, built.prefetch_factor, built.persistent_workers, built.batch_size) == (4, 5, True, 48)
    same = make_request(fixed={"prefetch_factor": 5}, search={"batch_size": (48,)}, max_workers=4)
    assert plan(same, DECIDED).choices["batch_size"] == (48,)


@pytest.mark.parametrize(
    "options",
    [
        {"fixed": {"prefetch_factor": 2}},
        {"search": {"prefetch_factor": ValueRange(low=1, high=4)}},
        {"search": {"batch_size": (32, 64)}},
        {"max_workers": 3},
    ],
)
def test_a_setting_of_the_users_loader_cannot_have_another_value(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"is \d+, as pkg\.Own sets it"):
        plan(make_request(**options), DECIDED)


SMALL, DROPPING = make_workload(samples=40), make_workload(samples=50, drop_last=True)
OWN = make_config(11, 5, 48, persistent_workers=True)
READY = make_workload(cpu_share=1.0, baseline=OWN)  # a factory that returns a DataLoader with these settings
CHANGING = make_workload(epoch_state="dataset.set_epoch()")
COMPUTING = make_workload(cpu_share=1.0, load_cost=make_cost(5e-3))
SOME_COMPUTING = make_workload(cpu_share=0.2, load_cost=make_cost(5e-3))
DIFFERING = make_workload(differing_samples=2)
DUPLICATING = make_workload(kind="iterable", workers_duplicate_data=True)
DENSE = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 33)
MANY = (64, 80, 96, 112, 128, 160, 192)


@pytest.mark.parametrize(
    ("name", "workload", "options", "found"),
    [
        ("num_workers", WAITING, {"search": {"num_workers": ValueRange(low=9, high=13)}}, (9, 10, 11, 12, 13)),
        ("num_workers", WAITING, {"search": {"num_workers": ValueRange(low=1, high=33)}}, DENSE),
        ("num_workers", WAITING, {"search": {"num_workers": ValueRange(low=2, high=9)}, "max_workers": 3}, (2, 3)),
        ("num_workers", WAITING, {"search": {"num_workers": (2, 4, 8)}, "max_workers": 4}, (2, 4)),
        ("num_workers", WAITING, {"search": {"num_workers": ValueRange(low=64, high=192)}, "max_workers": 256}, MANY),
        ("num_workers", WAITING, {"search": {"num_workers": ValueRange(low=64, high=192)}}, MANY),
        ("num_workers", DIFFERING, {"max_workers": 2}, (0, 1, 2)),
        ("num_workers", DIFFERING, {"fixed": {"num_workers": 2}}, (2,)),
        ("num_workers", DUPLICATING, {"max_workers": 0}, (0,)),
        ("batch_size", WAITING, {"search": {"batch_size": ValueRange(low=50, high=200)}}, (64, 128)),
        ("batch_size", WAITING, {"search": {"batch_size": (100, 20, 100)}}, (20, 100)),
        ("batch_size", SMALL, {}, (16, 32)),
        ("batch_size", DROPPING, {"search": {"batch_size": (16, 64)}}, (16,)),
        ("batch_size", READY, {}, (48,)),
        ("batch_size", READY, {"search": {"batch_size": (32, 64)}}, (32, 64)),
        ("batch_size", READY, {"search": {"batch_size": ValueRange(low=40, high=128)}}, (48, 64, 128)),
        ("prefetch_factor", READY, {}, (1, 2, 4, 5, 8)),
        ("in_order", WAITING, {}, (False, True)),
        ("in_order", COMPUTING, {}, (True,)),
        ("in_order", COMPUTING, {"search": {"in_order": (True, False)}}, (False, True)),
        ("in_order", WAITING, {"search": {"in_order": (True, False)}}, (False, True)),
        ("in_order", SOME_COMPUTING, {}, (True,)),
        ("in_order", SOME_COMPUTING, {"search": {"num_workers": ValueRange(low=0, high=2)}}, (False, True)),
        ("sharing_strategy", WAITING, {"search": {"sharing_strategy": ("file_system",)}}, ("file_system",)),
        ("persistent_workers", WAITING, {"epochs": 1}, (True,)),
        ("persistent_workers", WAITING, {"epochs": 2}, (False, True)),
        ("persistent_workers", CHANGING, {}, (False,)),
        ("persistent_workers", CHANGING, {"epochs": 1}, (False,)),
        ("persistent_workers", CHANGING, {"search": {"persistent_workers": (False, True)}}, (False, True)),
        ("persistent_workers", CHANGING.model_copy(update={"baseline": OWN}), {}, (True,)),
        ("device_prefetch", make_gpu_workload(), {}, (False, True)),
        ("device_prefetch", make_gpu_workload(step_takes_moved=False), {}, (False,)),
        ("worker_threads", make_workload(worker_threads_cpu=0.1), {}, (None,)),
        ("worker_threads", make_workload(worker_threads_cpu=0.9), {}, (None, 1)),
        ("worker_threads", WAITING, {"search": {"worker_threads": (1, None)}}, (None, 1)),
    ],
)
def test_the_choices_of_a_setting_follow_from_the_workload_and_the_request(
    name: str, workload: WorkloadProfile, options: dict[str, Any], found: tuple[Any, ...]
) -> None:
    assert plan(make_request(**options), workload).choices[name] == found


@pytest.mark.parametrize(
    ("options", "is_said"),
    [({}, True), ({"fixed": {"persistent_workers": False}}, False), ({"max_workers": 0}, False)],
)
def test_a_short_run_keeps_its_workers_unless_another_rule_decides(options: dict[str, Any], is_said: bool) -> None:
    found = plan(make_request(epochs=1, **options))
    assert any("persistent_workers is on" in note for note in found.notes) is is_said
    assert found.choices["persistent_workers"] == (is_said,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"search": {"in_order": ValueRange(low=0, high=1)}}, "list of values"),
        ({"search": {"batch_size": ValueRange(low=17, high=18)}}, "leaves none of the possible values 16, 32"),
        ({"search": {"num_workers": ValueRange(low=8, high=16)}, "max_workers": 4}, "num_workers"),
        ({"fixed": {"num_workers": 8}, "max_workers": 4}, "--max-workers 4 allows none of num_workers=8"),
        ({"fixed": {"prefetch_factor": 0}}, "is not possible"),
        ({"fixed": {"in_order": 3}}, "is not possible"),
        ({"search": {"prefetch_factor": ValueRange(low=0, high=4)}}, "is not possible"),
    ],
)
def test_a_value_that_no_loader_takes_is_refused_before_anything_is_tried(options: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, ValueError), match=words):
        plan(make_request(**options))


@pytest.mark.parametrize("workload", [make_workload(pinning=False), make_workload(pinning=True, on_accelerator=True)])
def test_pinning_and_copying_in_advance_are_refused_without_an_effect(workload: WorkloadProfile) -> None:
    space = plan(workload=workload)
    assert space.choices["pin_memory"] == space.choices["device_prefetch"] == (False,)
    assert any("pin_memory is off" in note for note in space.notes)
    for name, value in itertools.product(("pin_memory", "device_prefetch"), (True, "True")):
        with pytest.raises(UsageError, match=f"{name}=true has no effect"):
            plan(make_request(fixed={name: value}), workload)
        assert plan(make_request(search={name: (True, False)}), workload).choices[name] == (False,)


@pytest.mark.parametrize(
    ("changes", "workers", "words"),
    [
        ({"kind": "iterable", "shards": 3}, (0, 1, 2, 3), "3 shards"),
        ({"kind": "iterable", "workers_duplicate_data": True}, (0, 1), "returns all the data"),
        ({"kind": "iterable", "workers_duplicate_data": True, "baseline": make_config(3, 5, 48)}, (0, 1), "at most 1"),
        ({"differing_samples": 2}, (0,), "different data"),
        ({"shared_by_workers": "the position of /data/records"}, (0,), "different data"),
    ],
)
def test_the_workload_limits_the_workers_and_a_note_tells_why(
    changes: dict[str, Any], workers: tuple[int, ...], words: str
) -> None:
    space = plan(workload=make_workload(**changes))
    assert space.choices["num_workers"] == workers
    assert any(words in note for note in space.notes)


def test_the_largest_batch_size_of_the_search_decides_how_many_workers_can_be_useful() -> None:
    slow = WAITING.model_copy(update={"step_cost": LinearCost(fixed=0.035), "samples": 200_000})
    alone, beside = (
        plan(make_request(search={"batch_size": sizes}), slow).choices["num_workers"] for sizes in ((256,), (16, 256))
    )
    assert alone == beside
    assert max(plan(make_request(search={"batch_size": (16,)}), slow).choices["num_workers"]) < max(alone)


@pytest.mark.parametrize("workload", [WAITING, make_workload(sample_bytes=0, batch_tensors=0)])
def test_without_a_writable_shm_no_worker_is_tried(workload: WorkloadProfile) -> None:
    machine = make_machine(shm_writable=False)
    assert plan(workload=workload, machine=machine).choices["num_workers"] == (0,)
    fixed = make_request(fixed={"num_workers": 1})  # its trials will say why it fails
    assert plan(fixed, workload, machine).choices["num_workers"] == (1,)


def test_without_workers_the_settings_of_workers_are_not_searched() -> None:
    request = make_request(fixed={"num_workers": 0, "prefetch_factor": 4}, search={"batch_size": (16, 32)})
    space = plan(request)
    assert set(space.searched()) == {"batch_size", "pin_memory"}
    assert "prefetch_factor has no effect without workers" in space.notes


def test_the_batch_size_of_the_users_own_batches_cannot_be_set() -> None:
    workload = make_workload(batching="user")
    space = plan(workload=workload)
    assert {config.dataloader.batch_size for config in space.configs} == {None}
    assert any("batch_size is not tuned" in note for note in space.notes)
    with pytest.raises(UsageError, match="own batches"):
        plan(make_request(fixed={"batch_size": 64}), workload)


def test_a_ready_loader_keeps_its_batch_size_and_its_settings_are_a_candidate() -> None:
    space = plan(workload=READY)
    assert any("batch_size stays at 48" in note and "--batch-size" in note for note in space.notes)
    assert space.nearest(OWN) == OWN


def test_a_dataset_smaller_than_the_smallest_batch_is_refused_if_incomplete_batches_are_dropped() -> None:
    with pytest.raises(UsageError, match="drop_last leaves no batch: the dataset has 8 samples, the smallest batch 16"):
        plan(workload=make_workload(samples=8, drop_last=True))


def test_batches_that_do_not_fit_into_memory_are_left_out() -> None:
    workload = make_workload(sample_bytes=MIB, rss_bytes=0)
    assert plan(workload=workload, budgets=make_limits(memory_bytes=100 * MIB)).choices["batch_size"] == (16, 32)
    with pytest.raises(NoFeasibleConfigError, match=r"16 samples needs about 32\.0 GiB .* is 8\.0 GiB.*--max-memory"):
        plan(workload=make_workload(sample_bytes=GIB, rss_bytes=0), budgets=make_limits())


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, ()),
        ({"fixed": {"batch_size": 64}}, (64,)),
        ({"search": {"batch_size": (8, 48, 100)}}, (8, 48, 100)),
        ({"search": {"batch_size": ValueRange(low=64, high=128)}}, (64, 128)),
    ],
)
def test_the_workload_is_profiled_at_the_batch_sizes_of_the_request(
    options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert list_requested_sizes(make_request(**options)) == sizes
