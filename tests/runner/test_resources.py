from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from autotune.runner.resources import Limits, ResourceMonitor, ResourceUsage
from tests.builders import GIB, MIB, make_limits

LIMITS = Limits(make_limits(memory_bytes=8 * GIB, reserve_bytes=GIB, shm_bytes=64 * MIB), 60.0, 300.0)


def find_excess(idle: float = 1.0, running: float = 10.0, **changes: Any) -> tuple[str, str] | None:
    usual: dict[str, Any] = {"host_bytes": 4 * GIB, "shm_bytes": 32 * MIB, "available_bytes": 8 * GIB}
    return LIMITS.find_excess(ResourceUsage(**usual | changes), idle, running)


@pytest.mark.parametrize(
    "reading",
    [
        *({"idle": 60.0}, {"running": 300.0}, {"host_bytes": 8 * GIB}, {"shm_bytes": 64 * MIB}),
        {"available_bytes": GIB},
    ],
)
def test_a_trial_at_a_limit_goes_on(reading: dict[str, Any]) -> None:
    assert find_excess(**reading) is None


@pytest.mark.parametrize(
    ("reading", "kind", "numbers"),
    [
        ({"host_bytes": 9 * GIB}, "out_of_memory", ("9.0 GiB", "8.0 GiB")),
        ({"available_bytes": 512 * MIB}, "out_of_memory", ("512 MiB", "1.0 GiB")),
        ({"shm_bytes": 65 * MIB}, "shm_exhausted", ("65.0 MiB", "64.0 MiB")),
        ({"idle": 75.0}, "stalled", ("1m15", "1m00")),
        ({"running": 400.0}, "timed_out", ("6m40", "5m00")),
        ({"shm_bytes": GIB, "host_bytes": 9 * GIB, "idle": 1e3}, "out_of_memory", ()),
        ({"shm_bytes": GIB, "idle": 1e3}, "shm_exhausted", ()),
    ],
)
def test_the_excess_that_harms_others_most_is_reported_with_the_number_against_the_limit(
    reading: dict[str, Any], kind: str, numbers: tuple[str, ...]
) -> None:
    found, message = find_excess(**reading) or ("", "")
    assert found == kind
    assert all(number in message for number in numbers)


def test_exact_memory_counts_shared_pages_once_and_shared_memory_that_is_only_open() -> None:
    code = "import mmap, os, sys; fd = os.open('/dev/shm/psm_dltune_test', os.O_RDWR | os.O_CREAT); os.unlink('/dev/shm/psm_dltune_test'); os.write(fd, b'x' * 2**24); kept = b'x' * 2**25; print(flush=True); sys.stdin.read()"  # noqa: E501  # one program
    monitor, budgets = ResourceMonitor(os.getpid()), make_limits()
    before = monitor.read(budgets, exact=True)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        now = monitor.read(budgets, exact=True)
        assert process.pid in monitor.list_processes()
        process.communicate()
    assert now.shm_bytes - before.shm_bytes == 16 * MIB
    assert 48 * MIB <= now.host_bytes - before.host_bytes < 80 * MIB


def test_memory_is_measured_exactly_if_its_upper_bound_exceeds_the_budget() -> None:
    monitor = ResourceMonitor(os.getppid())
    assert monitor.read(make_limits(memory_bytes=10**6 * GIB)).host_bytes == 0
    assert monitor.read(make_limits(memory_bytes=1)).host_bytes > 0


def test_memory_that_a_trial_shares_outside_dev_shm_as_pinned_memory_is_held_against_the_budget() -> None:
    code = (
        "import mmap, sys; kept = mmap.mmap(-1, 2**28); kept.write(b'x' * 2**28); print(flush=True); sys.stdin.read()"
    )
    monitor = ResourceMonitor(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = monitor.read(make_limits(memory_bytes=200 * MIB)).host_bytes
        process.communicate()
    assert used > 256 * MIB
