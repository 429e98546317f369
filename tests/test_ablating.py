from __future__ import annotations

import pytest

from autotune.ablating import Ablation, list_rungs
from autotune.messages import TrialRequest, TrialResult
from autotune.planning import Plan, make_plan
from autotune.schema import ProcessSettings
from autotune.view import View
from tests.builders import make_config, make_limits, make_machine, make_request, make_result, make_workload

SHARED = ProcessSettings(sharing_strategy="file_system")
ANSWER = make_config(12, 4, persistent_workers=True, in_order=False, process=SHARED)


def make_test_plan() -> Plan:
    return make_plan(make_request(batch_sizes=(32,)), make_machine(), make_workload(), make_limits())


def test_the_steps_change_one_setting_at_a_time_and_end_at_the_answer() -> None:
    settings, configs = zip(*list_rungs(make_config(0), ANSWER), strict=True)
    assert settings == (
        "num_workers=12",
        "prefetch_factor=4",
        "persistent_workers=True",
        "in_order=False",
        "sharing_strategy=file_system",
    )
    assert configs[0] == make_config(12, 2)
    assert configs[-1] == ANSWER


def test_equal_configurations_have_no_steps_between_them() -> None:
    assert list(list_rungs(ANSWER, ANSWER)) == []


def test_giving_workers_up_is_one_step() -> None:
    assert [setting for setting, _ in list_rungs(ANSWER, make_config(0))] == ["num_workers=0"]


def test_each_row_is_measured_and_the_speedups_multiply_to_that_of_the_answer() -> None:
    rates = {"num_workers=12": 300.0, "prefetch_factor=4": 330.0}
    asked: list[TrialRequest] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request)
        return make_result(request.config, list(rates.values())[len(asked) - 1])

    ablation = Ablation(make_test_plan(), run_trial, View())
    ablation.run(100.0, make_config(12, 4, persistent_workers=True), 400.0)
    assert [row.setting for row in ablation.rows] == [*rates, "persistent_workers=True"]
    assert [row.samples_per_second for row in ablation.rows] == pytest.approx([300.0, 330.0, 400.0], rel=0.05)
    product = 1.0
    for row in ablation.rows:
        product *= row.speedup
    assert product == pytest.approx(4.0)
    assert len(asked) == 2


def test_a_step_that_does_not_work_alone_is_taken_together_with_the_next() -> None:
    def run_trial(request: TrialRequest) -> TrialResult:
        return TrialResult(kind="too_many_files", config=request.config, message="had too many files")

    ablation = Ablation(make_test_plan(), run_trial, View())
    ablation.run(100.0, make_config(12, 2, process=SHARED), 400.0)
    (row,) = ablation.rows
    assert row.setting == "num_workers=12 sharing_strategy=file_system"
    assert row.speedup == pytest.approx(4.0)
