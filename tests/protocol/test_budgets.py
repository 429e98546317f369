from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.protocol.budgets import plan_budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from tests.builders import GIB, make_gpu_workload, make_machine, make_multi_process_request, make_request, make_workload


def on_gpus(count: int) -> WorkloadProfile:
    workload = make_gpu_workload()
    assert workload.accelerator is not None
    return workload.model_copy(update={"accelerator": workload.accelerator.model_copy(update={"count": count})})


@pytest.mark.parametrize(("text", "memory", "shm"), [("50%", 6 * GIB, 4 * GIB), ("100GiB", 12 * GIB, 8 * GIB)])
def test_budgets_are_shares_of_the_available_memory_and_at_most_all_of_it(text: str, memory: int, shm: int) -> None:
    budgets = plan_budgets(make_machine(), make_request(max_memory=text, max_shm=text))
    assert (budgets.memory_bytes, budgets.shm_bytes) == (memory, shm)


def test_training_processes_of_one_host_share_its_memory_and_shm() -> None:
    budgets = plan_budgets(make_machine(), make_multi_process_request(4, max_memory="100%", max_shm="100%"))
    joint = budgets.for_ranks(4)
    assert (budgets.memory_bytes, budgets.shm_bytes) == (3 * GIB, 2 * GIB)
    assert (joint.memory_bytes, joint.shm_bytes, joint.nofile) == (12 * GIB, 8 * GIB, budgets.nofile)


def test_a_machine_with_little_free_memory_has_a_smaller_reserve() -> None:
    budgets = plan_budgets(make_machine(memory_limit_bytes=400 * GIB, memory_available_bytes=10 * GIB), make_request())
    assert (budgets.reserve_bytes, budgets.memory_bytes) == (2 * GIB, 8 * GIB)


def test_three_percent_of_physical_memory_stay_free_and_read_only_shared_memory_is_not_used() -> None:
    machine = make_machine(memory_limit_bytes=100 * GIB, memory_available_bytes=100 * GIB, shm_writable=False)
    budgets = plan_budgets(machine, make_request())
    assert (budgets.reserve_bytes, budgets.shm_bytes) == (3 * GIB, 0)


@pytest.mark.parametrize(
    ("ranks", "gpus", "device", "share"),
    [
        *((1, 1, "cuda", 72), (2, 1, "cuda", 36), (2, 2, "cuda", 72), (4, 2, "cuda", 36), (3, 2, "cuda", 36)),
        (2, 2, "cuda:1", 36),
    ],
)
def test_training_processes_share_the_memory_of_their_gpu(ranks: int, gpus: int, device: str, share: int) -> None:
    request = TuningRequest(workload=WorkloadRequest(dataset="pkg:make", device=device, nproc_per_node=ranks))
    assert plan_budgets(make_machine(), request, on_gpus(gpus)).gpu_bytes == share * GIB


@pytest.mark.parametrize(
    ("workload", "gpu_bytes"),
    [
        (None, None),
        (make_workload(), None),
        (make_gpu_workload(), 40 * GIB),
        (make_gpu_workload(gpu_free_bytes=10 * GIB), 10 * GIB),
        (make_gpu_workload(gpu_free_bytes=0), 40 * GIB),  # unknown
    ],
)
def test_others_hold_a_part_of_the_gpu(workload: WorkloadProfile | None, gpu_bytes: int | None) -> None:
    assert plan_budgets(make_machine(), make_request(max_gpu_memory="50%"), workload).gpu_bytes == gpu_bytes


@pytest.mark.parametrize(
    ("cpus", "options", "workers"),
    [(4, {}, 64), (32, {}, 64), (96, {}, 192), (96, {"max_workers": 100}, 100), (4, {"max_workers": 0}, 0)],
)
def test_workers_are_limited_by_the_user_or_the_cpus(cpus: int, options: dict[str, Any], workers: int) -> None:
    assert plan_budgets(make_machine(affinity_cpus=cpus), make_request(**options)).max_workers == workers


@pytest.mark.parametrize("option", ["--max-memory", "--max-shm", "--max-gpu-memory"])
def test_a_budget_that_cannot_be_parsed_is_refused_by_the_name_of_its_option(option: str) -> None:
    name = option[2:].replace("-", "_")
    with pytest.raises(UsageError, match=f"^{option}: .*a lot"):
        plan_budgets(make_machine(), make_request(**{name: "a lot"}))
