"""A trial is ended at its budget, as another process measures it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from tests.faults.watcher import Watcher

MIB = 2**20
GIB = 2**30
ROOT = str(Path(__file__).parents[2])
SHM_TOLERANCE = 32 * MIB  # one batch
MEMORY_TOLERANCE = 150 * MIB  # what fast workers allocate between two readings: 5% of 3 GiB
HOSTILE = ("make_leak", "make_copy_on_write")

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Another process on the machine, larger than any trial: the kernel's first choice if it had one."""
    code = f"kept = b'x' * {1536 * MIB}; import time; time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code])
    yield process
    process.kill()
    process.wait()


def run_trials(factory: str, step_seconds: float = 1e-3, **budgets: int) -> list[TrialResult]:
    """Run trials with none, two and four workers, whatever the demand model would say of them."""
    usual = {"memory_bytes": 8 * GIB, "reserve_bytes": 0, "shm_bytes": GIB, "nofile": 1024}
    workload = WorkloadRequest(dataset=f"tests.faults.hostile:{factory}", step_seconds=step_seconds, working_dir=ROOT)
    with TrialRunner(workload, 20.0) as runner:
        runner.limit(Budgets.model_validate(usual | budgets))
        return [runner.run(make_request(workers)) for workers in (0, 2, 4)]


def make_request(workers: int) -> TrialRequest:
    loader = DataLoaderSettings(batch_size=4, num_workers=workers, prefetch_factor=4 if workers else None)
    return TrialRequest(config=LoaderConfig(dataloader=loader), epochs=10, seconds=6.0, precision=0.001)


@pytest.mark.parametrize("factory", HOSTILE)
@pytest.mark.fault("Budget of host memory", needs="plain")
def test_a_trial_that_takes_more_and_more_memory_is_ended_at_its_budget(
    factory: str, bystander: subprocess.Popen[bytes]
) -> None:
    budget = 900 * MIB
    with Watcher() as watcher:
        results = run_trials(factory, memory_bytes=budget)
    assert "out_of_memory" in {result.kind for result in results}
    assert {result.kind for result in results} <= {"out_of_memory", "completed"}
    assert watcher.looks > 50
    assert watcher.host_bytes <= budget + MEMORY_TOLERANCE, f"{watcher.host_bytes / MIB:.0f} MiB"
    assert bystander.poll() is None


@pytest.mark.fault("Budget of /dev/shm", needs="plain")
def test_samples_of_8_mib_never_fill_more_of_shm_than_they_may() -> None:
    budget = 200 * MIB  # of the 576 MiB that four workers with four batches each could fill
    with Watcher() as watcher:
        alone, *crowded = run_trials("make_large_samples", step_seconds=0.2, shm_bytes=budget)
    assert alone.kind == "completed"
    assert {result.kind for result in crowded} == {"shm_exhausted"}
    assert 0 < watcher.shm_bytes <= budget + SHM_TOLERANCE, f"{watcher.shm_bytes / MIB:.0f} MiB"
