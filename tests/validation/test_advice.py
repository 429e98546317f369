from __future__ import annotations

from typing import Any

import pytest

from autotune.profiles.schema import Bottleneck
from autotune.search.plan import Plan, make_plan
from autotune.trial.budgets import Budgets
from autotune.validation.advice import suggest_improvements
from tests.builders import MIB, make_config, make_cost, make_limits, make_machine, make_request, make_workload

WAITING: dict[str, Any] = {"load_cost": make_cost(5e-3), "cpu_share": 0.02, "step_cost": make_cost(0.0, 1e-3)}


def make_test_plan(budgets: Budgets | None = None, **workload: Any) -> Plan:
    return make_plan(
        make_request(batch_sizes=(32,)), make_machine(), make_workload(**workload), budgets or make_limits()
    )


def advise_on(bottleneck: Bottleneck, budgets: Budgets | None = None, workers: int = 4, **workload: Any) -> str:
    return " ".join(suggest_improvements(make_test_plan(budgets, **workload), make_config(workers), bottleneck))


def test_a_plain_workload_bound_by_its_step_needs_no_advice() -> None:
    assert advise_on("step") == ""


def test_samples_that_wait_one_by_one_are_better_fetched_in_batches() -> None:
    assert "waits 5.0 ms (CPU 2 %)" in advise_on("io", **WAITING)
    assert "__getitems__" in advise_on("io", **WAITING)


@pytest.mark.parametrize("changes", [{"has_getitems": True}, {"kind": "iterable"}, {"cpu_share": 1.0}])
def test_batches_are_not_advised_where_they_exist_or_could_not_help(changes: dict[str, Any]) -> None:
    assert "__getitems__" not in advise_on("io", **{**WAITING, **changes})


def test_a_collate_fn_that_takes_much_of_loading_is_named_with_its_share() -> None:
    found = advise_on("cpu", load_cost=make_cost(1e-3), collate_cost=make_cost(5e-4))
    assert "Collating takes 50 % of loading a batch (16.0 ms of 32.0 ms)" in found
    assert advise_on("cpu", load_cost=make_cost(1e-3), collate_cost=make_cost(1e-5)) == ""


def test_a_limit_that_keeps_faster_configurations_out_is_named_with_its_number() -> None:
    small = make_limits(shm_bytes=16 * MIB)
    found = advise_on("io", small, **WAITING, sample_bytes=16 * 1024, has_getitems=True)
    assert "is over a limit" in found
    assert "/dev/shm:" in found
    assert "of 16.0 MiB" in found


def test_loading_with_threads_of_its_own_is_pointed_out() -> None:
    assert "keeps 1.9 CPUs busy" in advise_on("cpu", cpu_share=1.9)


def test_a_step_that_takes_the_workers_cpus_is_pointed_out() -> None:
    assert "torch.set_num_threads(1)" in advise_on("cpu", step_cpus=1.9)
    assert advise_on("io", step_cpus=1.9) == ""


def test_short_epochs_are_better_joined() -> None:
    assert "several times in one epoch" in advise_on("epoch")


def test_a_faster_decoder_is_told_where_loading_bounds_the_run() -> None:
    assert "cv2 took less." in advise_on("cpu", faster_decoder="cv2 took less.")
    assert advise_on("step", faster_decoder="cv2 took less.") == ""
