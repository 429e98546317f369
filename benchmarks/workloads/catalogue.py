"""The workloads of the benchmarks."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.workloads.workload import BenchWorkload

DATASETS: Final = "benchmarks.workloads.datasets"
DEVICE: Final = "benchmarks.workloads.on_device"
IMAGE_STEP: Final = "examples.images:make_step"
MEMORY_STEP: Final = f"{DATASETS}:make_step"


def _on_cpu(
    name: str,
    workers: tuple[int, ...],
    unordered: tuple[int, ...],
    restarting: tuple[int, ...],
    step: float | str,
    dataset: str = "",
    **parts: Any,
) -> BenchWorkload:
    """Return a workload whose step, real or of so many seconds, has no device."""
    timed: dict[str, Any] = {"step": step} if isinstance(step, str) else {"step_seconds": step}
    parts |= timed | {"workers": workers, "unordered": unordered, "restarting": restarting}
    return BenchWorkload(name, dataset or f"{DATASETS}:make_{name}", **parts)


CPU_WORKLOADS: Final = (  # workers of the grid, those also without order, those also restarting; the step; the dataset
    _on_cpu("tutorial", (0, 2, 4, 8, 12, 16, 24), (8, 12, 16), (8, 12), 0.010, "examples.tutorial:make_dataset"),
    _on_cpu("decode", (0, 1, 2, 3, 4, 6, 8), (2, 3, 4), (2, 3), 0.003),
    _on_cpu("reads", (0, 2, 4, 8, 12, 16, 24, 32), (12, 16, 24), (8, 16), 0.005),
    _on_cpu("heavy_tail", (0, 2, 4, 8, 12, 16, 24, 32), (8, 12, 16, 24), (8, 16), 0.005),
    _on_cpu("queries", (0, 1, 2, 3, 4, 6, 8, 12), (4, 6, 8), (4, 6), 0.005),
    _on_cpu("stream", (0, 2, 4, 8, 12, 16, 24, 32), (), (8, 12, 16), 0.002),
    _on_cpu("memory", (0, 1, 2, 3, 4, 6, 8), (1, 2), (1, 2), 0.001),
    _on_cpu("large", (0, 1, 2, 3, 4, 6, 8), (2, 3), (1, 2), 0.010, batch_size=8),
    _on_cpu("slow_start", (0, 1, 2, 3, 4, 6, 8, 12), (4, 6, 8), (2, 4), 0.005),
    _on_cpu("images", (0, 1, 2, 4, 8, 12, 16), (2, 12), (2, 4), IMAGE_STEP, "examples.images:make_dataset"),
    _on_cpu("decode_train", (0, 1, 2, 4, 8, 12, 16), (2, 12), (2, 4), IMAGE_STEP, f"{DATASETS}:make_decode"),
    _on_cpu("memory_train", (0, 1, 2, 3, 4, 6), (1, 2), (1, 2), MEMORY_STEP, f"{DATASETS}:make_memory"),
)


def _on_device(name: str, **parts: Any) -> BenchWorkload:
    """Return a workload whose real step runs on a device: two or three seconds at a good configuration."""
    dataset = f"{DEVICE}:make_{name}"
    step = f"{DEVICE}:make_{name}_step"
    return BenchWorkload(name, dataset, step=step, device="cuda", trials=12, trial_seconds=1.5, **parts)


GPU_WORKLOADS: Final = (
    _on_device("jpeg", batch_size=64, epochs=3, rehearsal_args={"samples": 96}),
    _on_device("floats", batch_size=16, epochs=4, rehearsal_args={"samples": 96, "side": 64}),
    _on_device("tabular", batch_size=256, epochs=6, rehearsal_args={"samples": 512}),
    _on_device("tokens", batch_size=64, epochs=4, rehearsal_args={"samples": 96, "length": 33}),
)
WORKLOADS: Final = (*CPU_WORKLOADS, *GPU_WORKLOADS)


def find_workload(name: str) -> BenchWorkload:
    """Return the workload of a name; a KeyError if there is none."""
    return {workload.name: workload for workload in WORKLOADS}[name]
