from __future__ import annotations

import pytest

from autotune.errors import UsageError
from autotune.trial.budgets import plan_budgets
from tests.builders import (
    GIB,
    make_gpu_workload,
    make_machine,
    make_ranks_request,
    make_request,
    make_workload,
)


def test_budgets_in_percent_are_shares_of_what_is_available_now() -> None:
    budgets = plan_budgets(make_machine(), make_request(max_memory="50%", max_shm="25%"))
    assert budgets.memory_bytes == 6 * GIB
    assert budgets.shm_bytes == 2 * GIB


def test_a_budget_beyond_the_machine_is_cut_to_the_machine() -> None:
    budgets = plan_budgets(make_machine(), make_request(max_memory="100GiB", max_shm="100GiB"))
    assert budgets.memory_bytes == 12 * GIB
    assert budgets.shm_bytes == 8 * GIB


def test_training_processes_of_one_host_share_its_memory_and_shm() -> None:
    budgets = plan_budgets(make_machine(), make_ranks_request(4, max_memory="100%", max_shm="100%"))
    assert budgets.memory_bytes == 3 * GIB
    assert budgets.shm_bytes == 2 * GIB
    assert budgets.of_all(4).memory_bytes == 12 * GIB
    assert budgets.of_all(4).nofile == budgets.nofile


def test_training_processes_that_outnumber_the_gpus_share_their_memory() -> None:
    gpu = make_gpu_workload()
    alone, shared = (plan_budgets(make_machine(), make_ranks_request(ranks), gpu).gpu_bytes for ranks in (1, 2))
    assert (alone, shared) == (72 * GIB, 36 * GIB)


def test_the_gpu_has_a_budget_only_where_there_is_one() -> None:
    request = make_request(max_gpu_memory="50%")
    assert plan_budgets(make_machine(), request).gpu_bytes is None
    assert plan_budgets(make_machine(), request, make_workload()).gpu_bytes is None
    assert plan_budgets(make_machine(), request, make_gpu_workload()).gpu_bytes == 40 * GIB


def test_what_other_processes_hold_of_the_gpu_is_not_in_the_budget() -> None:
    crowded = make_gpu_workload(gpu_room_bytes=10 * GIB)
    assert plan_budgets(make_machine(), make_request(), crowded).gpu_bytes == 10 * GIB


def test_max_workers_is_the_users_where_given() -> None:
    assert plan_budgets(make_machine(), make_request(max_workers=0)).max_workers == 0
    assert plan_budgets(make_machine(affinity_cpus=96), make_request()).max_workers >= 96


@pytest.mark.parametrize(("option", "request_field"), [("--max-memory", "max_memory"), ("--max-shm", "max_shm")])
def test_a_budget_that_cannot_be_read_is_refused_by_the_name_of_its_option(option: str, request_field: str) -> None:
    with pytest.raises(UsageError, match=f"{option}.*a lot"):
        plan_budgets(make_machine(), make_request(**{request_field: "a lot"}))
