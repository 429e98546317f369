from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.schema import Budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import ValueRange
from autotune.search.plan import Plan
from tests.builders import KIB, MIB, make_config, make_cost, make_limits, make_workload
from tests.search.formulas import make_test_plan

WAITING = make_workload(samples=100_000, cpu_share=0.01, load_cost=make_cost(5e-3), pinning=True)
OWN = make_config(3, 5, 48, persistent_workers=True)


def plan(workload: WorkloadProfile = WAITING, budgets: Budgets | None = None, **options: Any) -> Plan:
    budgets = budgets or make_limits(max_workers=options.get("max_workers", 64))
    return make_test_plan(workload, budgets, **{"fixed": {}} | options)


def plan_ready(own: LoaderConfig = OWN, budgets: Budgets | None = None, **options: Any) -> Plan:
    """Plan for a factory that returns a ready DataLoader with these settings."""
    return plan(WAITING.model_copy(update={"baseline": own, "sample_bytes": 16 * KIB}), budgets, **options)


def test_the_baseline_is_pytorchs_default_at_the_batch_size_nearest_to_32() -> None:
    assert plan(search={"batch_size": (100, 50)}).baseline == make_config(0, batch_size=50)
    assert plan(make_workload(batching="user")).baseline.dataloader.batch_size is None


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"search": {"batch_size": (32, 64)}}, {}),
        ({"search": {"batch_size": ValueRange(low=64, high=128)}}, {"batch_size": 64}),
        ({"search": {"prefetch_factor": ValueRange(low=1, high=4)}}, {"prefetch_factor": 4}),
        ({"max_workers": 2}, {"num_workers": 2}),
        ({"search": {"num_workers": ValueRange(low=5, high=9)}}, {"num_workers": 5}),
        ({"search": {"num_workers": ValueRange(low=1, high=4)}}, {}),
        ({"fixed": {"num_workers": 7}}, {"num_workers": 7}),
    ],
)
def test_a_ready_loader_is_the_baseline_with_changes_that_the_request_demands(
    options: dict[str, Any], changes: dict[str, Any]
) -> None:
    found = plan_ready(**options)
    assert found.baseline.dataloader == OWN.dataloader.model_copy(update=changes)
    given = ", ".join(f"{name}={value}" for name, value in changes.items())
    assert found.name_baseline(found.baseline) == f"your DataLoader's settings{f' with {given}' if changes else ''}"


def test_a_ready_loader_that_is_predicted_over_a_limit_is_compared_with_fewer_workers() -> None:
    found = plan_ready(make_config(16, 8, 32), make_limits(shm_bytes=16 * MIB))
    assert 0 < found.baseline.dataloader.num_workers < 16
    assert not found.describe_excess(found.baseline)
    assert found.baseline.dataloader.prefetch_factor == 8


def first_trials(workload: WorkloadProfile = WAITING, budgets: Budgets | None = None) -> list[LoaderConfig]:
    """Return the first trials after the baseline."""
    return plan(workload, budgets).initial_configs()[1:]


def test_the_first_trials_are_distinct_and_contain_as_many_workers_as_cpus() -> None:
    first = first_trials()
    assert len(first) == len(set(first))
    assert first[0].dataloader.num_workers > 4
    process = ProcessSettings(non_blocking=True)
    assert make_config(4, 2, 32, process, pin_memory=True, persistent_workers=True) in first


def test_the_first_trials_have_fewer_and_more_workers_than_the_model_predicts() -> None:
    workload = make_workload(samples=100_000, cpu_share=0.01, load_cost=make_cost(5e-3), step_cost=make_cost(6e-4))
    enough, *others = [config.dataloader.num_workers for config in first_trials(workload)]
    assert 8 <= enough <= 10  # 5 ms of loading over 0.6 ms of stepping
    assert min(others) < enough < max(others)


def test_many_workers_are_tried_first_beside_a_step_whose_threads_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    computing: dict[str, Any] = {"cpu_share": 1.0, "load_cost": make_cost(2e-3), "step_cost": make_cost(0.0, 5e-3)}
    assert max(config.dataloader.num_workers for config in first_trials(make_workload(**computing))) < 16
    spinning = make_workload(**computing, step_cpus=1.9)
    assert max(config.dataloader.num_workers for config in first_trials(spinning)) == 16
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert max(config.dataloader.num_workers for config in first_trials(spinning)) < 16


def test_the_first_trials_of_samples_in_memory_start_without_workers() -> None:
    in_memory = make_workload(load_cost=make_cost(1e-7), step_cost=make_cost(0.0, 1e-4))
    assert first_trials(in_memory)[0].dataloader.num_workers == 0


@given(shm=st.integers(0, 64 * MIB), files=st.integers(80, 400))
def test_no_first_trial_is_predicted_to_exceed_a_limit(shm: int, files: int) -> None:
    found = plan(budgets=make_limits(shm_bytes=shm, nofile=files))
    assert [config for config in found.initial_configs()[1:] if found.describe_excess(config)] == []
