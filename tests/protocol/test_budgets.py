from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from tests.builders import (
    GIB,
    make_gpu_workload,
    make_machine,
    make_multi_process_request,
    make_request,
    make_workload,
)


def on_gpus(count: int) -> WorkloadProfile:
    workload = make_gpu_workload()
    assert workload.accelerator is not None
    return workload.model_copy(update={"accelerator": workload.accelerator.model_copy(update={"count": count})})


def test_budgets_in_percent_are_shares_of_what_is_available_now() -> None:
    budgets = plan_budgets(make_machine(), make_request(max_memory="50%", max_shm="25%"))
    assert budgets.memory_bytes == 6 * GIB
    assert budgets.shm_bytes == 2 * GIB


def test_a_budget_beyond_the_machine_is_cut_to_the_machine() -> None:
    budgets = plan_budgets(make_machine(), make_request(max_memory="100GiB", max_shm="100GiB"))
    assert budgets.memory_bytes == 12 * GIB
    assert budgets.shm_bytes == 8 * GIB


def test_training_processes_of_one_host_share_its_memory_and_shm() -> None:
    budgets = plan_budgets(make_machine(), make_multi_process_request(4, max_memory="100%", max_shm="100%"))
    assert budgets.memory_bytes == 3 * GIB
    assert budgets.shm_bytes == 2 * GIB
    assert (budgets.for_ranks(4).memory_bytes, budgets.for_ranks(4).shm_bytes) == (12 * GIB, 8 * GIB)
    assert budgets.for_ranks(4).nofile == budgets.nofile


def test_a_share_of_memory_is_whole_bytes_that_do_not_add_up_to_more_than_there_are() -> None:
    machine = make_machine(memory_available_bytes=100, shm_free_bytes=20)
    budgets = plan_budgets(machine, make_multi_process_request(3, max_memory="100%", max_shm="100%"))
    assert (budgets.memory_bytes, budgets.shm_bytes) == (33, 6)
    crowded = make_gpu_workload(gpu_room_bytes=20)
    assert plan_budgets(machine, make_multi_process_request(3), crowded).gpu_bytes == 6


def test_three_percent_of_physical_memory_stay_free_for_others() -> None:
    budgets = plan_budgets(make_machine(memory_limit_bytes=100 * GIB), make_request(max_memory="100%"))
    assert budgets.reserve_bytes == 3 * GIB


def test_where_shared_memory_cannot_be_written_its_budget_is_nothing() -> None:
    assert plan_budgets(make_machine(shm_writable=False), make_request(max_shm="50%")).shm_bytes == 0


@pytest.mark.parametrize(("ranks", "gpus", "share"), [(1, 1, 72), (2, 1, 36), (2, 2, 72), (4, 2, 36), (3, 2, 36)])
def test_training_processes_that_outnumber_the_gpus_share_their_memory(ranks: int, gpus: int, share: int) -> None:
    assert plan_budgets(make_machine(), make_multi_process_request(ranks), on_gpus(gpus)).gpu_bytes == share * GIB


def test_training_processes_that_are_given_one_gpu_by_name_share_it_however_many_there_are() -> None:
    request = TuningRequest(
        workload=WorkloadRequest(dataset="pkg.data:make_dataset", device="cuda:1", nproc_per_node=2)
    )
    assert plan_budgets(make_machine(), request, on_gpus(2)).gpu_bytes == 36 * GIB


def test_the_gpu_has_a_budget_only_where_there_is_one() -> None:
    request = make_request(max_gpu_memory="50%")
    assert plan_budgets(make_machine(), request).gpu_bytes is None
    assert plan_budgets(make_machine(), request, make_workload()).gpu_bytes is None
    assert plan_budgets(make_machine(), request, make_gpu_workload()).gpu_bytes == 40 * GIB


def test_what_other_processes_hold_of_the_gpu_is_not_in_the_budget() -> None:
    crowded = make_gpu_workload(gpu_room_bytes=10 * GIB)
    assert plan_budgets(make_machine(), make_request(), crowded).gpu_bytes == 10 * GIB


def test_where_nothing_is_known_of_what_others_hold_the_gpus_budget_is_the_users_share() -> None:
    unknown = make_gpu_workload(gpu_room_bytes=0)
    assert plan_budgets(make_machine(), make_request(max_gpu_memory="25%"), unknown).gpu_bytes == 20 * GIB


def test_max_workers_is_the_users_where_given() -> None:
    assert plan_budgets(make_machine(), make_request(max_workers=0)).max_workers == 0
    assert plan_budgets(make_machine(affinity_cpus=96), make_request(max_workers=100)).max_workers == 100


@pytest.mark.parametrize(("cpus", "workers"), [(4, 64), (32, 64), (96, 192)])
def test_workers_are_searched_up_to_twice_the_cpus_and_at_least_up_to_64(cpus: int, workers: int) -> None:
    assert plan_budgets(make_machine(affinity_cpus=cpus), make_request()).max_workers == workers


@pytest.mark.parametrize(
    ("option", "request_field"),
    [("--max-memory", "max_memory"), ("--max-shm", "max_shm"), ("--max-gpu-memory", "max_gpu_memory")],
)
def test_a_budget_that_cannot_be_read_is_refused_by_the_name_of_its_option(option: str, request_field: str) -> None:
    with pytest.raises(UsageError, match=f"^{option}: .*a lot"):
        plan_budgets(make_machine(), make_request(**{request_field: "a lot"}), make_gpu_workload())
