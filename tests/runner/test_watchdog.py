from __future__ import annotations

from typing import Any

import pytest

from autotune.runner.diagnosis import check_gpu_memory
from autotune.runner.resources import ResourceUsage
from autotune.runner.watchdog import BudgetBreach, Watchdog
from tests.builders import GIB, MIB, make_config, make_limits, make_result


def judge(shm_budget_bytes: int = 64 * MIB, **changes: Any) -> BudgetBreach | None:
    watch = Watchdog(
        budgets=make_limits(memory_bytes=8 * GIB, reserve_bytes=GIB, shm_bytes=shm_budget_bytes),
        stall_seconds=60.0,
        deadline_seconds=300.0,
    )
    idle_seconds = changes.pop("idle_seconds", 1.0)
    running_seconds = changes.pop("running_seconds", 10.0)
    return watch.judge(make_usage(**changes), idle_seconds, running_seconds)


def make_usage(**changes: Any) -> ResourceUsage:
    usual: dict[str, Any] = {
        "host_bytes": 4 * GIB,
        "exact": True,
        "shm_bytes": 32 * MIB,
        "available_bytes": 8 * GIB,
    }
    return ResourceUsage(**usual | changes)


def test_a_trial_within_all_its_limits_goes_on() -> None:
    assert judge() is None


@pytest.mark.parametrize(
    "reading",
    [
        {"idle_seconds": 60.0},
        {"running_seconds": 300.0},
        {"host_bytes": 8 * GIB},
        {"shm_bytes": 64 * MIB},
        {"available_bytes": GIB},
    ],
)
def test_a_trial_exactly_at_a_limit_goes_on(reading: dict[str, Any]) -> None:
    assert judge(**reading) is None


@pytest.mark.parametrize(
    ("reading", "reason", "numbers"),
    [
        ({"host_bytes": 9 * GIB}, "out_of_memory", ("9.0 GiB", "8.0 GiB")),
        ({"available_bytes": 512 * MIB}, "out_of_memory", ("512 MiB", "1.0 GiB")),
        ({"shm_bytes": 65 * MIB}, "shm_exhausted", ("65.0 MiB", "64.0 MiB")),
        ({"idle_seconds": 75.0}, "stalled", ("1m15", "1m00")),
        ({"running_seconds": 400.0}, "timed_out", ("6m40", "5m00")),
    ],
)
def test_a_breach_is_named_with_the_number_against_the_limit(
    reading: dict[str, Any], reason: str, numbers: tuple[str, str]
) -> None:
    breach = judge(**reading)
    assert breach is not None
    assert breach.reason == reason
    assert all(number in breach.message for number in numbers)


def test_an_upper_bound_of_memory_over_the_budget_asks_for_exact_numbers_before_anything_is_ended() -> None:
    watch = Watchdog(budgets=make_limits(memory_bytes=8 * GIB), stall_seconds=60.0, deadline_seconds=300.0)
    rough = make_usage(host_bytes=9 * GIB, exact=False)
    assert watch.judge(rough, 1.0, 10.0) is None
    assert watch.needs_exact_memory(rough)
    assert not watch.needs_exact_memory(make_usage(host_bytes=9 * GIB, exact=True))
    assert not watch.needs_exact_memory(make_usage(host_bytes=7 * GIB, exact=False))


def test_a_trial_that_uses_no_shm_lives_where_there_is_no_budget_for_it() -> None:
    assert judge(shm_budget_bytes=0, shm_bytes=0) is None
    assert judge(shm_budget_bytes=0, shm_bytes=1) is not None


def test_of_several_breaches_the_one_that_harms_others_is_named_first() -> None:
    everything: dict[str, Any] = {"available_bytes": 0, "host_bytes": 9 * GIB, "shm_bytes": GIB, "idle_seconds": 1e3}
    reasons = []
    for healthy in ({}, {"available_bytes": 8 * GIB, "host_bytes": 0}, {"shm_bytes": 0}):
        everything |= healthy
        breach = judge(**everything)
        assert breach is not None
        reasons.append(breach.reason)
    assert reasons == ["out_of_memory", "shm_exhausted", "stalled"]


def test_a_trial_over_the_budget_for_device_memory_is_out_of_memory() -> None:
    result = make_result(make_config(), 100.0)
    assert result.measurement is not None
    used = result.measurement.model_copy(update={"peak_gpu_bytes": 2 * GIB})
    result = result.model_copy(update={"measurement": used})
    assert check_gpu_memory(result, make_limits(gpu_bytes=3 * GIB)) == result
    over = check_gpu_memory(result, make_limits(gpu_bytes=GIB))
    assert (over.kind, over.measurement) == ("out_of_memory", None)
    assert "2.0 GiB of device memory against a budget of 1.0 GiB" in over.message
