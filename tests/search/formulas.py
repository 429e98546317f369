"""Searches over a formula in place of child processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.config import LoaderConfig
from autotune.profiles.schema import Budgets
from autotune.progress import ProgressListener
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.search.plan import Plan, make_plan
from tests.builders import make_cost, make_limits, make_machine, make_request, make_result, make_workload


def make_test_plan(workload: WorkloadProfile | None = None, budgets: Budgets | None = None, **request: Any) -> Plan:
    """Plan a run with batches of 32 on the usual machine."""
    made = make_request(**{"fixed": {"batch_size": 32}} | request)
    return make_plan(made, make_machine(), workload or make_workload(), budgets or make_limits())


def io_bound_workload() -> WorkloadProfile:
    """Build samples that wait 10 ms, before a step of 10 ms: about 16 workers are useful on two CPUs."""
    return make_workload(load_cost=make_cost(0.01), cpu_share=0.05, step_cost=make_cost(0.0, 0.01), sample_bytes=1000)


def saturating(config: LoaderConfig) -> float:
    """Return a throughput that grows with workers up to 12, and by a third with persistent ones."""
    loader = config.dataloader
    return 100.0 * min(12, max(1, loader.num_workers)) * (1.33 if loader.persistent_workers else 1.0)


class Formula:
    """Measures by a formula, and records the configurations."""

    def __init__(self, rate: Callable[[LoaderConfig], float] = saturating, stop_after: int | None = None) -> None:
        self.configs: list[LoaderConfig] = []
        self._rate, self._stop_after = rate, stop_after

    def __call__(self, request: TrialRequest) -> TrialResult:
        if len(self.configs) == self._stop_after:
            raise KeyboardInterrupt
        self.configs.append(request.config)
        return make_result(request.config, self._rate(request.config), peak_host_bytes=2**28, peak_shm_bytes=2**20)


class ResumeListener(ProgressListener):
    """Records how many trials a search continues from."""

    resumed = 0

    def show_resumed(self, trials: int) -> None:
        self.resumed = trials
