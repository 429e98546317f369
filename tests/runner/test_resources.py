from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from autotune.runner.diagnosis import check_gpu_memory
from autotune.runner.resources import LimitExcess, Limits, ResourceMonitor, ResourceUsage
from tests.builders import GIB, MIB, make_config, make_limits, make_result


def find_excess(shm_budget_bytes: int = 64 * MIB, **changes: Any) -> LimitExcess | None:
    limits = Limits(
        budgets=make_limits(memory_bytes=8 * GIB, reserve_bytes=GIB, shm_bytes=shm_budget_bytes),
        stall_seconds=60.0,
        deadline_seconds=300.0,
    )
    idle_seconds = changes.pop("idle_seconds", 1.0)
    running_seconds = changes.pop("running_seconds", 10.0)
    return limits.check_resources(make_usage(**changes)) or limits.check_time(idle_seconds, running_seconds)


def make_usage(**changes: Any) -> ResourceUsage:
    usual: dict[str, Any] = {
        "host_bytes": 4 * GIB,
        "is_exact": True,
        "shm_bytes": 32 * MIB,
        "available_bytes": 8 * GIB,
    }
    return ResourceUsage(**usual | changes)


def test_a_trial_within_all_its_limits_goes_on() -> None:
    assert find_excess() is None


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
    assert find_excess(**reading) is None


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
def test_a_excess_is_named_with_the_number_against_the_limit(
    reading: dict[str, Any], reason: str, numbers: tuple[str, str]
) -> None:
    excess = find_excess(**reading)
    assert excess is not None
    assert excess.reason == reason
    assert all(number in excess.message for number in numbers)


def test_an_upper_bound_of_memory_ends_no_trial() -> None:
    assert find_excess(host_bytes=9 * GIB, is_exact=False) is None


def test_exact_memory_counts_shared_pages_once_and_shared_memory_that_is_only_open() -> None:
    code = "import mmap, os, sys; fd = os.open('/dev/shm/psm_dltune_test', os.O_RDWR | os.O_CREAT); os.unlink('/dev/shm/psm_dltune_test'); os.write(fd, b'x' * 2**24); kept = b'x' * 2**25; print(flush=True); sys.stdin.read()"  # noqa: E501  # one program
    monitor = ResourceMonitor(os.getpid(), make_limits())
    before = monitor.read(exact=True)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        now = monitor.read(exact=True)
        assert process.pid in monitor.list_processes()
        process.communicate()
    assert now.shm_bytes - before.shm_bytes == 16 * MIB
    assert 48 * MIB <= now.host_bytes - before.host_bytes < 80 * MIB


def test_a_trial_that_uses_no_shm_lives_where_there_is_no_budget_for_it() -> None:
    assert find_excess(shm_budget_bytes=0, shm_bytes=0) is None
    assert find_excess(shm_budget_bytes=0, shm_bytes=1) is not None


def test_of_several_excesses_the_one_that_harms_others_is_named_first() -> None:
    everything: dict[str, Any] = {"available_bytes": 0, "host_bytes": 9 * GIB, "shm_bytes": GIB, "idle_seconds": 1e3}
    reasons = []
    for healthy in ({}, {"available_bytes": 8 * GIB, "host_bytes": 0}, {"shm_bytes": 0}):
        everything |= healthy
        excess = find_excess(**everything)
        assert excess is not None
        reasons.append(excess.reason)
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
