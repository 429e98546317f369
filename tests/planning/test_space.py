from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import NoFeasibleConfigError, UsageError
from autotune.planning.plan import choose_baseline, make_plan
from autotune.planning.resources import ResourceModel
from autotune.planning.space import SearchSpace, choose_probe_sizes, plan_space
from autotune.protocol.budgets import Budgets, plan_budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, ValueRange
from autotune.settings import SETTINGS, config_from_values, setting_values
from autotune.system.machine import MachineProfile
from benchmarks.traces import make_space
from tests.builders import (
    GIB,
    KIB,
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
    machine = machine or make_machine()
    request = request or make_request()
    return plan_space(request, machine, workload, budgets or plan_budgets(machine, request))


FULL = plan()
NUMBERS = st.none() | st.booleans() | st.integers(-10, 10_000) | st.sampled_from(["file_system", "file_descriptor"])
PARAMS = st.dictionaries(st.sampled_from(list(SETTINGS)), NUMBERS)


@given(params=PARAMS)
def test_any_parameters_build_a_legal_configuration_inside_the_space(params: dict[str, Any]) -> None:
    config = FULL.from_params(params)
    loader = config.dataloader
    assert loader.num_workers in FULL.choices["num_workers"]
    assert loader.batch_size in FULL.choices["batch_size"]
    if loader.num_workers:
        assert loader.prefetch_factor in FULL.choices["prefetch_factor"]


@given(params=PARAMS)
def test_a_configuration_turned_into_parameters_and_back_is_the_same(params: dict[str, Any]) -> None:
    config = FULL.from_params(params)
    assert FULL.from_params(FULL.to_params(config)) == config


@given(workers=st.integers(-5, 100))
def test_a_number_between_two_choices_becomes_the_nearest(workers: int) -> None:
    space = make_space(batch_size=(32,), num_workers=(0, 4, 10, 32))
    built = space.from_params({"num_workers": workers}).dataloader.num_workers
    assert all(abs(built - workers) <= abs(choice - workers) for choice in space.choices["num_workers"])


def test_all_configurations_of_a_space_are_listed_once() -> None:
    space = make_space(batch_size=(16, 32), num_workers=(0, 2), prefetch_factor=(2, 4), pin_memory=(False,))
    configs = list(space.configs)
    assert len(configs) == len(set(configs))
    without, having = 2, 2 * 2 * 2 * 2 * 2  # batch sizes; times prefetch, persistence, order and strategy
    assert len(configs) == without + having


def test_a_space_of_some_settings_has_no_device_prefetch() -> None:
    assert make_space(batch_size=(32,)).choices["device_prefetch"] == (False,)


def test_the_start_method_of_the_workload_is_kept_in_every_configuration() -> None:
    space = plan(workload=make_workload(multiprocessing_context="spawn"))
    assert {config.process.multiprocessing_context for config in space.configs} == {"spawn"}
    assert space.from_params({"num_workers": 2}).process.multiprocessing_context == "spawn"


def test_a_fixed_setting_has_one_value_and_is_not_searched() -> None:
    space = plan(make_request(fixed={"num_workers": 5, "in_order": True, "sharing_strategy": "file_system"}))
    assert {"num_workers", "in_order", "sharing_strategy"}.isdisjoint(space.searched())
    built = space.from_params({"num_workers": 8, "in_order": False})
    assert built.dataloader.num_workers == 5
    assert built.dataloader.in_order
    assert built.process.sharing_strategy == "file_system"


DECIDED = make_workload(
    loader_class="pkg.Own", fixed_settings={"prefetch_factor": 5, "persistent_workers": True, "batch_size": 48}
)


def test_a_setting_of_the_users_loader_is_not_searched() -> None:
    space = plan(workload=DECIDED)
    assert {"prefetch_factor", "persistent_workers", "batch_size"}.isdisjoint(space.searched())
    built = space.from_params({"num_workers": 2, "prefetch_factor": 2, "batch_size": 64}).dataloader
    assert (built.prefetch_factor, built.persistent_workers, built.batch_size) == (5, True, 48)


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed": {"prefetch_factor": 2}},
        {"search": {"prefetch_factor": ValueRange(low=1, high=4)}},
        {"search": {"batch_size": (32, 64)}},
    ],
)
def test_a_setting_of_the_users_loader_cannot_have_another_value(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"is \d+, as pkg\.Own sets it"):
        plan(make_request(**changes), DECIDED)


def test_asking_for_the_value_that_the_users_loader_sets_is_no_error() -> None:
    assert plan(make_request(fixed={"prefetch_factor": 5}, search={"batch_size": (48,)}), DECIDED).choices[
        "batch_size"
    ] == (48,)


def test_a_narrow_range_is_searched_number_by_number() -> None:
    assert plan(make_request(search={"num_workers": ValueRange(low=9, high=13)})).choices["num_workers"] == (
        9,
        10,
        11,
        12,
        13,
    )


def test_a_wide_range_has_its_ends_and_the_default_choices_between() -> None:
    workers = plan(make_request(search={"num_workers": ValueRange(low=1, high=33)}, max_workers=64)).choices[
        "num_workers"
    ]
    assert workers[0] == 1
    assert workers[-1] == 33
    assert 16 in workers
    assert 17 not in workers


def test_a_range_of_workers_ends_at_the_limit() -> None:
    assert (
        max(
            plan(make_request(search={"num_workers": ValueRange(low=2, high=16)}, max_workers=6)).choices["num_workers"]
        )
        == 6
    )


def test_a_range_of_batch_sizes_restricts_the_default_ones() -> None:
    assert plan(make_request(search={"batch_size": ValueRange(low=50, high=200)})).choices["batch_size"] == (64, 128)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"search": {"in_order": ValueRange(low=0, high=1)}}, "list of values"),
        ({"search": {"batch_size": ValueRange(low=17, high=18)}}, "leaves none of the possible values 16, 32"),
        ({"search": {"num_workers": ValueRange(low=8, high=16)}, "max_workers": 4}, "num_workers"),
    ],
)
def test_a_range_that_leaves_nothing_is_refused_with_what_is_possible(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(make_request(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed": {"prefetch_factor": 0}},
        {"fixed": {"num_workers": -1}},
        {"fixed": {"in_order": 3}},
        {"fixed": {"num_workers": "file_system"}},
        {"search": {"prefetch_factor": ValueRange(low=0, high=4)}},
    ],
)
def test_a_value_that_no_loader_takes_is_refused_before_anything_is_tried(changes: dict[str, Any]) -> None:
    with pytest.raises((UsageError, ValueError), match="is not possible"):
        plan(make_request(**changes))


def test_pinning_is_not_searched_without_an_accelerator() -> None:
    space = plan(workload=make_workload(pinning=False))
    assert space.choices["pin_memory"] == (False,)
    assert any("pin_memory" in note for note in space.notes)


def test_pinning_is_not_searched_for_samples_on_the_accelerator() -> None:
    space = plan(workload=make_workload(pinning=True, on_accelerator=True))
    assert space.choices["pin_memory"] == (False,)
    assert any("on the accelerator" in note for note in space.notes)


def test_pinning_is_searched_if_it_has_an_effect() -> None:
    assert set(plan(workload=make_workload(pinning=True)).choices["pin_memory"]) == {False, True}


@pytest.mark.parametrize("workload", [make_workload(pinning=False), make_workload(pinning=True, on_accelerator=True)])
def test_asking_for_pinning_without_effect_is_refused(workload: WorkloadProfile) -> None:
    with pytest.raises(UsageError, match="pin_memory"):
        plan(make_request(fixed={"pin_memory": True}), workload)


def test_more_workers_than_an_iterable_dataset_has_shards_are_not_tried() -> None:
    space = plan(workload=make_workload(kind="iterable", shards=3))
    assert max(space.choices["num_workers"]) == 3
    assert any("3 shards" in note for note in space.notes)


def test_workers_that_return_different_data_are_tried_only_if_they_are_asked_for() -> None:
    workload = make_workload(differing_samples=2)
    assert plan(workload=workload).choices["num_workers"] == (0,)
    assert plan(make_request(max_workers=4), workload).choices["num_workers"] != (0,)
    assert plan(make_request(fixed={"num_workers": 2}), workload).choices["num_workers"] == (2,)


def test_a_stream_that_does_not_shard_itself_gets_at_most_one_worker() -> None:
    space = plan(workload=make_workload(kind="iterable", workers_duplicate_data=True))
    assert space.choices["num_workers"] == (0, 1)
    assert any("shard" in note for note in space.notes)


def test_no_worker_is_tried_where_the_user_allows_none_even_for_a_stream_that_does_not_shard() -> None:
    space = plan(make_request(max_workers=0), make_workload(kind="iterable", workers_duplicate_data=True))
    assert space.choices["num_workers"] == (0,)


def test_the_batch_size_of_the_users_own_batches_is_not_searched() -> None:
    space = plan(workload=make_workload(batching="user"))
    assert {config.dataloader.batch_size for config in space.configs} == {None}
    assert any("batch_size" in note for note in space.notes)


def test_setting_a_batch_size_for_the_users_own_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="own batches"):
        plan(make_request(fixed={"batch_size": 64}), make_workload(batching="user"))


def test_persistence_is_not_searched_for_a_single_epoch() -> None:
    assert plan(make_request(epochs=1)).choices["persistent_workers"] == (True,)
    assert plan(make_request(epochs=2)).choices["persistent_workers"] == (False, True)


def test_the_users_batch_sizes_are_searched_sorted_and_once() -> None:
    assert plan(make_request(search={"batch_size": (100, 20, 100)})).choices["batch_size"] == (20, 100)


def test_no_batch_is_larger_than_the_dataset_unless_it_is_requested() -> None:
    small = make_workload(samples=40)
    assert max(size or 0 for size in plan(workload=small).choices["batch_size"]) == 32
    assert plan(make_request(search={"batch_size": (64,)}), small).choices["batch_size"] == (64,)


def test_a_batch_size_that_leaves_no_batch_once_the_last_is_dropped_is_not_searched() -> None:
    workload = make_workload(samples=50, drop_last=True)
    assert plan(make_request(search={"batch_size": (16, 64)}), workload).choices["batch_size"] == (16,)


def test_batches_that_do_not_fit_into_memory_are_left_out() -> None:
    workload = make_workload(sample_bytes=MIB, rss_bytes=0)
    assert plan(workload=workload, budgets=make_limits(memory_bytes=100 * MIB)).choices["batch_size"] == (16, 32)


def test_when_no_batch_fits_the_message_says_what_is_needed_and_allowed() -> None:
    workload = make_workload(sample_bytes=GIB, rss_bytes=0)
    with pytest.raises(NoFeasibleConfigError, match=r"16 samples needs about 32\.0 GiB .* is 8\.0 GiB.*--max-memory"):
        plan(workload=workload, budgets=make_limits())


def test_without_a_writable_shm_only_the_training_process_loads() -> None:
    assert plan(machine=make_machine(shm_writable=False)).choices["num_workers"] == (0,)


def test_without_a_writable_shm_no_worker_can_start_even_for_samples_without_tensors() -> None:
    workload = make_workload(sample_bytes=0, batch_tensors=0)  # [Errno 30]: the locks of the queues lie there, too
    assert plan(workload=workload, machine=make_machine(shm_writable=False)).choices["num_workers"] == (0,)


def test_max_workers_extends_the_search_to_that_number() -> None:
    computing = make_workload(cpu_share=1.0)
    assert max(plan(make_request(max_workers=40), computing).choices["num_workers"]) == 40


OWN = make_config(3, 5, 48, persistent_workers=True)


def bring(own: LoaderConfig) -> WorkloadProfile:
    """Let the factory return a ready DataLoader with these settings."""
    return WAITING.model_copy(update={"baseline": own})


def find_baseline(
    own: LoaderConfig | None = OWN,
    budgets: Budgets | None = None,
    workload: WorkloadProfile = WAITING,
    **options: Any,
) -> LoaderConfig:
    request, budgets = make_request(**options), budgets or make_limits(max_workers=options.get("max_workers", 64))
    workload = workload.model_copy(update={"baseline": own})
    return choose_baseline(request, workload, plan(request, workload, budgets=budgets), budgets)


def test_the_baseline_is_torchs_default_at_the_size_nearest_to_32() -> None:
    assert find_baseline(None, search={"batch_size": (100, 50)}) == make_config(0, batch_size=50)


def test_the_baseline_is_the_users_own_loader_where_there_is_one() -> None:
    assert find_baseline() == OWN


def test_the_users_own_loader_is_compared_at_the_batch_size_that_is_set() -> None:
    assert find_baseline(search={"batch_size": (256,)}).dataloader.batch_size == 256


def test_the_users_own_loader_keeps_its_batch_size_if_others_are_listed() -> None:
    assert find_baseline(search={"batch_size": (32, 64)}) == OWN


def test_the_baseline_of_own_batches_has_no_batch_size() -> None:
    assert find_baseline(None, workload=make_workload(batching="user")).dataloader.batch_size is None


def test_a_ready_loader_keeps_its_batch_size_and_a_note_says_how_to_search_it() -> None:
    space = plan(workload=bring(OWN))
    assert space.choices["batch_size"] == (48,)
    assert any("batch_size stays at 48" in note and "--batch-size" in note for note in space.notes)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"search": {"batch_size": (32, 64)}}, (32, 64)),
        ({"fixed": {"batch_size": 64}}, (64,)),
        ({"search": {"batch_size": ValueRange(low=40, high=128)}}, (48, 64, 128)),
    ],
)
def test_a_ready_loaders_batch_size_is_searched_if_sizes_are_asked_for(
    options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert plan(make_request(**options), bring(OWN)).choices["batch_size"] == sizes


def test_the_settings_of_a_ready_loader_are_among_those_that_may_be_tried() -> None:
    own = make_config(11, 5, 48, persistent_workers=True)
    space = plan(workload=make_workload(cpu_share=1.0, baseline=own))
    assert own in set(space.configs)


def test_the_workers_of_a_ready_loader_are_not_added_if_every_worker_returns_all_the_data() -> None:
    assert plan(workload=make_workload(kind="iterable", workers_duplicate_data=True, baseline=OWN)).choices[
        "num_workers"
    ] == (0, 1)


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"max_workers": 2}, 2),
        ({"max_workers": 0}, 0),
        ({"search": {"num_workers": ValueRange(low=5, high=9)}}, 5),
        ({"search": {"num_workers": ValueRange(low=0, high=1)}}, 1),
        ({"search": {"num_workers": ValueRange(low=1, high=4)}}, 3),
        ({"fixed": {"num_workers": 7}}, 7),
    ],
)
def test_the_baseline_has_as_many_workers_as_the_request_allows(options: dict[str, Any], workers: int) -> None:
    assert find_baseline(**options).dataloader.num_workers == workers


def test_the_baseline_has_only_batches_ahead_and_sizes_inside_a_range() -> None:
    found = find_baseline(
        search={"prefetch_factor": ValueRange(low=1, high=4), "batch_size": ValueRange(low=64, high=128)}
    ).dataloader
    assert (found.prefetch_factor, found.batch_size) == (4, 64)


def test_a_ready_loader_that_is_predicted_over_a_budget_is_compared_with_fewer_workers() -> None:
    own, budgets = make_config(16, 8, 32), make_limits(shm_bytes=16 * MIB)
    workload = WAITING.model_copy(update={"sample_bytes": 16 * KIB})
    found = find_baseline(own, budgets, workload)
    assert 0 < found.dataloader.num_workers < 16
    assert ResourceModel(workload).fits(found, budgets)
    assert found.dataloader.prefetch_factor == 8


def test_the_plan_notes_every_change_of_the_users_own_loader_in_the_baseline() -> None:
    request = make_request(max_workers=2, search={"batch_size": (64,)})
    plans = [make_plan(asked, make_machine(), bring(OWN), make_limits()) for asked in (request, make_request())]
    said, silent = [[note for note in found.space.notes if "baseline" in note] for found in plans]
    assert silent == []
    (note,) = said
    assert "num_workers=2 instead of 3" in note
    assert "batch_size=64 instead of 48" in note


def guess(
    workload: WorkloadProfile = WAITING, budgets: Budgets | None = None, machine: MachineProfile | None = None
) -> list[LoaderConfig]:
    budgets = budgets or make_limits()
    machine = machine or make_machine()
    return make_plan(make_request(), machine, workload, budgets).initial_configs()[1:]  # after the baseline


def test_the_first_trials_contain_the_usual_rule_of_thumb() -> None:
    process = ProcessSettings(non_blocking=True)
    by_rule = make_config(4, 2, 32, process, pin_memory=True, persistent_workers=True)
    assert by_rule in guess()


def test_the_first_trials_have_fewer_and_more_workers_than_the_model_predicts() -> None:
    workload = make_workload(samples=100_000, cpu_share=0.01, load_cost=make_cost(5e-3), step_cost=make_cost(6e-4))
    enough, *others = [config.dataloader.num_workers for config in guess(workload)]
    assert 8 <= enough <= 10  # 5 ms of loading over 0.6 ms of stepping
    assert min(others) < enough < max(others)


def test_the_first_trials_are_distinct_and_have_more_workers_than_cpus_for_io_bound_samples() -> None:
    guesses = guess()
    assert len(guesses) == len(set(guesses))
    assert guesses[0].dataloader.num_workers > 4


def test_the_first_trials_of_samples_in_memory_start_without_workers() -> None:
    in_memory = make_workload(load_cost=make_cost(1e-7), step_cost=make_cost(0.0, 1e-4))
    assert guess(in_memory)[0].dataloader.num_workers == 0


@given(shm=st.integers(0, 64 * MIB), files=st.integers(80, 400))
def test_no_first_trial_is_predicted_to_exceed_a_limit(shm: int, files: int) -> None:
    budgets = make_limits(shm_bytes=shm, nofile=files)
    model = ResourceModel(WAITING)
    assert [config for config in guess(budgets=budgets) if not model.fits(config, budgets)] == []


def test_without_workers_the_settings_of_workers_are_not_searched() -> None:
    space = plan(make_request(fixed={"num_workers": 0}, search={"batch_size": (16, 32)}))
    assert set(space.searched()) == {"batch_size", "pin_memory"}


def test_copying_in_advance_is_searched_if_batches_are_copied_from_pinned_memory() -> None:
    assert plan(workload=make_gpu_workload()).choices["device_prefetch"] == (False, True)
    assert plan(workload=make_gpu_workload(h2d=None, on_accelerator=True)).choices["device_prefetch"] == (False,)
    assert plan(workload=make_workload()).choices["device_prefetch"] == (False,)


def test_batches_are_copied_in_advance_only_from_pinned_memory() -> None:
    space = plan(workload=make_gpu_workload())
    values = setting_values(space.from_params({"num_workers": 2}))
    copied = {
        pinned: config_from_values({**values, "pin_memory": pinned, "device_prefetch": True}).process
        for pinned in (False, True)
    }
    assert (copied[True].non_blocking, copied[True].device_prefetch) == (True, True)
    assert (copied[False].non_blocking, copied[False].device_prefetch) == (False, False)


def test_asking_for_copies_in_advance_without_a_device_is_refused() -> None:
    with pytest.raises(UsageError, match="device_prefetch=true: this device needs no copy in advance"):
        plan(make_request(fixed={"device_prefetch": True}), make_workload())


# Threads in workers


def test_threads_in_workers_are_limited_only_if_they_use_much_of_the_cpu() -> None:
    assert plan(workload=WAITING.model_copy(update={"worker_threads_cpu": 0.1})).choices["worker_threads"] == (None,)
    assert plan(workload=WAITING.model_copy(update={"worker_threads_cpu": 0.9})).choices["worker_threads"] == (None, 1)


def test_threads_in_workers_are_limited_if_that_is_asked_for() -> None:
    space = plan(make_request(fixed={"worker_threads": 1}))
    assert space.from_params({"num_workers": 2}).process.worker_threads == 1
    assert space.from_params({"num_workers": 0}).process.worker_threads is None


@pytest.mark.parametrize(
    ("search", "choices"),
    [
        ({"num_workers": (8, 2, 2)}, (2, 8)),
        ({"in_order": (True, False)}, (False, True)),
        ({"worker_threads": (1, None)}, (None, 1)),
        ({"sharing_strategy": ("file_system",)}, ("file_system",)),
    ],
)
def test_a_list_of_values_is_searched_sorted_and_once(search: dict[str, Any], choices: tuple[Any, ...]) -> None:
    (name,) = search
    assert plan(make_request(search=search)).choices[name] == choices


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (32, 512)),
        ({"fixed": {"batch_size": 64}}, (64, 64)),
        ({"search": {"batch_size": (8, 48, 100)}}, (48, 100)),
        ({"search": {"batch_size": ValueRange(low=64, high=128)}}, (32, 512)),
    ],
)
def test_the_workload_is_profiled_at_the_default_and_the_largest_batch_size(
    options: dict[str, Any], sizes: tuple[int, int]
) -> None:
    assert choose_probe_sizes(make_request(**options)) == sizes
