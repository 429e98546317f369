"""Which workloads are there?"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.workloads.workload import BenchWorkload

IMAGE_STEP: Final = "examples.images:make_step"

CPU_WORKLOADS: Final = (
    BenchWorkload(
        name="tutorial",
        dataset="examples.tutorial:make_dataset",
        step_seconds=0.010,
        workers=(0, 2, 4, 8, 12, 16, 24),
        unordered=(8, 12, 16),
        restarting=(8, 12),
    ),
    BenchWorkload(
        name="decode",
        dataset="benchmarks.workloads.datasets:make_decode",
        step_seconds=0.003,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(2, 3, 4),
        restarting=(2, 3),
    ),
    BenchWorkload(
        name="reads",
        dataset="benchmarks.workloads.datasets:make_reads",
        step_seconds=0.005,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        unordered=(12, 16, 24),
        restarting=(8, 16),
    ),
    BenchWorkload(
        name="heavy_tail",
        dataset="benchmarks.workloads.datasets:make_heavy_tail",
        step_seconds=0.005,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        unordered=(8, 12, 16, 24),
        restarting=(8, 16),
    ),
    BenchWorkload(
        name="queries",
        dataset="benchmarks.workloads.datasets:make_queries",
        step_seconds=0.005,
        workers=(0, 1, 2, 3, 4, 6, 8, 12),
        unordered=(4, 6, 8),
        restarting=(4, 6),
    ),
    BenchWorkload(
        name="stream",
        dataset="benchmarks.workloads.datasets:make_stream",
        step_seconds=0.002,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        restarting=(8, 12, 16),
    ),
    BenchWorkload(
        name="memory",
        dataset="benchmarks.workloads.datasets:make_memory",
        step_seconds=0.001,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(1, 2),
        restarting=(1, 2),
    ),
    BenchWorkload(
        name="large",
        dataset="benchmarks.workloads.datasets:make_large",
        batch_size=8,
        step_seconds=0.010,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(2, 3),
        restarting=(1, 2),
    ),
    BenchWorkload(
        name="slow_start",
        dataset="benchmarks.workloads.datasets:make_slow_start",
        step_seconds=0.005,
        workers=(0, 1, 2, 3, 4, 6, 8, 12),
        unordered=(4, 6, 8),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="images",
        dataset="examples.images:make_dataset",
        step=IMAGE_STEP,
        workers=(0, 1, 2, 3, 4, 7),
        unordered=(2, 4),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="decode_train",
        dataset="benchmarks.workloads.datasets:make_decode",
        step=IMAGE_STEP,
        workers=(0, 1, 2, 3, 4, 6),
        unordered=(2, 4),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="memory_train",
        dataset="benchmarks.workloads.datasets:make_memory",
        step="benchmarks.workloads.datasets:make_step",
        workers=(0, 1, 2, 3, 4, 6),
        unordered=(1, 2),
        restarting=(1, 2),
    ),
)


def _on_device(name: str, **parts: Any) -> BenchWorkload:
    """Make a workload whose real step runs on a device: two or three seconds at a good configuration."""
    dataset = f"benchmarks.workloads.device_datasets:make_{name}"
    step = f"benchmarks.workloads.device_steps:make_{name}_step"
    return BenchWorkload(name, dataset, step=step, device="cuda", trials=12, trial_seconds=1.5, **parts)


GPU_WORKLOADS: Final = (
    _on_device("jpeg", batch_size=64, epochs=3, rehearsal_args={"samples": 96}),
    _on_device("floats", batch_size=16, epochs=4, rehearsal_args={"samples": 96, "side": 64}),
    _on_device("tabular", batch_size=256, epochs=6, rehearsal_args={"samples": 512}),
    _on_device("tokens", batch_size=64, epochs=4, rehearsal_args={"samples": 96, "length": 33}),
)
WORKLOADS: Final = (*CPU_WORKLOADS, *GPU_WORKLOADS)


def find_workload(name: str) -> BenchWorkload:
    """Give the workload of a name; a KeyError where there is none."""
    return {workload.name: workload for workload in WORKLOADS}[name]
