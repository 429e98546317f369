"""Workloads with a formula in place of child processes."""

from __future__ import annotations

from autotune.config import LoaderConfig
from autotune.protocol.workload_profile import WorkloadProfile
from tests.builders import make_cost, make_workload


def io_bound_workload() -> WorkloadProfile:
    """Build samples that wait 10 ms, before a step of 10 ms: about 16 workers are useful on two CPUs."""
    return make_workload(load_cost=make_cost(0.01), cpu_share=0.05, step_cost=make_cost(0.0, 0.01), sample_bytes=1000)


def saturating(config: LoaderConfig) -> float:
    """Return a throughput that grows with workers up to 12, and by a third with persistent ones."""
    loader = config.dataloader
    return 100.0 * min(12, max(1, loader.num_workers)) * (1.33 if loader.persistent_workers else 1.0)
