from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.runner.resources import TREE_SECONDS, Limits, ResourceMonitor, ResourceUsage
from tests.builders import GIB, MIB, make_limits
from tests.runner.trials import make_request, open_runner

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
    monitor.start_command()
    assert monitor.read(make_limits(memory_bytes=10**6 * GIB)).host_bytes == 0
    monitor = ResourceMonitor(os.getppid())
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


GROWING = "import os, sys; kept = [b'x' * 2**28]; [os.fork() for _ in range({})]; print(flush=True); sys.stdin.read(1); kept.append(b'x' * 2**28); print(flush=True); sys.stdin.read()"  # noqa: E501  # one program


@contextmanager
def started(forks: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that takes 256 MiB, forks, and takes as much again for each byte of input."""
    command = [sys.executable, "-c", GROWING.format(forks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2**forks):
            process.stdout.readline()
        yield process
        process.communicate()


def test_a_trial_that_shares_memory_is_not_measured_exactly_at_every_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(milliseconds) / 1000)  # readings of a busy machine take longer
    monkeypatch.setattr("autotune.runner.resources.time", clock)
    monitor = ResourceMonitor(os.getpid())
    monitor.start_command()
    with started(forks=2):
        budgets = make_limits(memory_bytes=monitor.read(make_limits(), exact=True).host_bytes + 512 * MIB)
        readings = [monitor.read(budgets) for _ in range(20)]
    assert sum(one.host_bytes > 0 for one in readings) <= 2
    assert max(one.host_bytes for one in readings) < budgets.memory_bytes


def test_memory_that_the_same_processes_take_is_found_without_another_exact_reading() -> None:
    monitor = ResourceMonitor(os.getpid())
    monitor.start_command()
    with started(forks=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        budgets = make_limits(memory_bytes=monitor.read(make_limits(), exact=True).host_bytes + 128 * MIB)
        assert monitor.read(budgets).host_bytes < budgets.memory_bytes
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.readline()
        time.sleep(TREE_SECONDS)
        assert monitor.read(budgets).host_bytes - budgets.memory_bytes > 100 * MIB


def test_a_small_budget_of_shm_does_not_have_all_processes_read_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runner.resources.read_shm", lambda: (GIB, GIB))  # the tests beside this one fill it
    monitor = ResourceMonitor(os.getpid())
    monitor.start_command()
    walks, began = list[int](), time.monotonic()
    monkeypatch.setattr(monitor, "list_processes", lambda: walks.append(1) or [])  # type: ignore[func-returns-value]
    while time.monotonic() - began < 4 * TREE_SECONDS:
        monitor.read(make_limits(memory_bytes=10**6 * GIB, shm_bytes=MIB))
    assert monitor.tick_seconds < TREE_SECONDS / 10
    assert len(walks) <= 8


def test_processes_that_ended_count_only_if_they_left_a_name_in_shm() -> None:
    monitor, path = ResourceMonitor(os.getpid()), Path("/dev/shm/torch_4194399_0_0")
    monitor.seen |= {4194399, 4194398}
    path.touch()
    try:
        assert monitor.list_owners() == [4194399]
    finally:
        path.unlink()


def test_files_that_another_program_writes_to_shm_are_not_the_trials() -> None:
    monitor, path = ResourceMonitor(os.getpid()), Path("/dev/shm/nccl-dltune-test")
    path.write_bytes(b"x" * 64 * MIB)
    try:
        usage = monitor.read(make_limits(shm_bytes=32 * MIB))
    finally:
        path.unlink()
    assert usage.shm_bytes < 32 * MIB


def test_the_memory_of_workers_that_end_before_the_trial_does_is_recorded() -> None:
    whole = {"precision": 1e-4}  # the trial lasts its two seconds
    with open_runner("make_holding") as runner:
        requests = [make_request(workers, epochs=1, seconds=2.0).model_copy(update=whole) for workers in (0, 2)]
        found = list(map(runner.run, requests))
    assert [one.status for one in found] == ["completed", "completed"]
    alone, crowd = (one.peak_host_bytes - one.peak_shm_bytes for one in found)  # other tests may fill /dev/shm
    assert crowd - alone > 2 * 60 * MIB
