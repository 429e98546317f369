"""A trial is ended at its budget, as this test measures it without dltune's own readings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from tests.builders import make_config
from tests.conftest import list_trial_processes
from tests.faults.stage import LIMITS, MIB, hostile
from tests.kept_supervisor import list_kept

SHM_TOLERANCE = 64 * MIB  # a batch for each of two CPUs, between two readings
MEMORY_TOLERANCE = 150 * MIB  # what fast workers allocate between two readings: 5% of 3 GiB


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is larger than any trial: the kernel's first choice if it had one."""
    code = f"kept = b'x' * {1536 * MIB}; import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        yield process
        process.kill()


def read_used_shm() -> int:
    status = os.statvfs("/dev/shm")
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def read_anonymous_bytes(pid: int) -> int:
    """Read the anonymous memory of a process, of which shared pages are divided among their owners."""
    with suppress(OSError):
        found = re.search(r"Pss_Anon: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


@contextmanager
def watch() -> Iterator[list[tuple[int, int]]]:
    """Yield a list of readings of all dltune's processes: host memory with /dev/shm, and /dev/shm alone, in bytes."""
    readings: list[tuple[int, int]] = []
    is_over, shm_before = threading.Event(), read_used_shm()

    def read() -> None:
        while not is_over.wait(0.01):
            shm = max(0, read_used_shm() - shm_before)
            pids = [*list_kept(), *(process.pid for process in list_trial_processes())]
            readings.append((shm + sum(map(read_anonymous_bytes, pids)), shm))

    thread = threading.Thread(target=read)
    thread.start()
    yield readings
    is_over.set()
    thread.join()


def find_peak(readings: list[int]) -> int:
    """Return the largest value that two readings in a row agree on: a fork between two processes counts pages twice."""
    return max(map(min, readings, readings[1:]))


def run_trials(factory: str, budgets: dict[str, int], **options: Any) -> list[TrialResult]:
    """Run trials with none, two and four workers, whatever is predicted of them."""
    configs = [make_config(workers, 4, 4) for workers in (0, 2, 4)]
    trials = [TrialRequest(config=config, epochs=10, seconds=6.0, precision=0.001) for config in configs]
    return hostile(factory, *trials, budgets=LIMITS.model_copy(update=budgets), **options).play()


@pytest.mark.parametrize("factory", ["make_leak", "make_copy_on_write"])
@pytest.mark.fault("Budget of host memory")
def test_a_trial_that_takes_more_and_more_memory_is_ended_at_its_budget(
    factory: str, bystander: subprocess.Popen[bytes]
) -> None:
    budget = 900 * MIB
    with watch() as readings:
        results = run_trials(factory, {"memory_bytes": budget})
    assert "out_of_memory" in {result.status for result in results}
    assert {result.status for result in results} <= {"out_of_memory", "completed"}
    assert len([host for host, _ in readings if host]) > 50
    assert find_peak([host for host, _ in readings]) <= budget + MEMORY_TOLERANCE
    assert bystander.poll() is None


@pytest.mark.fault("Budget of /dev/shm")
def test_samples_of_8_mib_never_fill_more_of_shm_than_they_may() -> None:
    budget = 200 * MIB  # of the 576 MiB that four workers with four batches each could fill
    with watch() as readings:
        alone, *crowded = run_trials(
            "tests.misbehaving:make_honest", {"shm_bytes": budget}, step_seconds=0.2, floats=2 * MIB
        )
    assert alone.status == "completed"
    assert {result.status for result in crowded} == {"shm_exhausted"}
    assert 0 < find_peak([shm for _, shm in readings]) <= budget + SHM_TOLERANCE
