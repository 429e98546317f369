"""Runners of workloads that misbehave, and trials for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.profiles.schema import Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.runner.supervisor_client import SupervisorClient
from tests.kept_supervisor import keep_supervisor

ROOT = str(Path(__file__).parents[2])
LIMITS = Budgets(memory_bytes=8 * 2**30, reserve_bytes=0, shm_bytes=2**30, nofile=1024)


def open_runner(
    factory: str,
    stall_seconds: float = 30.0,
    supervisor: SupervisorClient | None = None,
    **options: Any,
) -> TrialRunner:
    request = WorkloadRequest.model_validate(
        {"dataset": f"tests.misbehaving:{factory}", "step_seconds": 1e-4, "working_dir": ROOT, **options}
    )
    runner = TrialRunner(request, stall_seconds, supervisor=supervisor or keep_supervisor())
    runner.limit(LIMITS)
    return runner


def make_request(workers: int, *, new_process: bool = False, epochs: int = 2, seconds: float = 20.0) -> TrialRequest:
    """Make a trial of whole epochs, however busy this machine is; fewer seconds cut a long one short."""
    extra = {"prefetch_factor": 2} if workers else {}
    loader = DataLoaderSettings(batch_size=8, num_workers=workers, **extra)
    return TrialRequest(config=LoaderConfig(dataloader=loader), epochs=epochs, seconds=seconds, new_process=new_process)


def run_one(factory: str, workers: int, stall_seconds: float = 30.0) -> TrialResult:
    with open_runner(factory, stall_seconds) as runner:
        return runner.run(make_request(workers))
