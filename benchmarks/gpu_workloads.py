"""The GPU workloads, what is tried on each, and the settings that people choose without measuring."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from autotune.config import DataLoaderSettings, FrozenModel, LoaderConfig, ProcessSettings
from benchmarks.workloads import HAND

WAYS: Final = ((False, False), (True, False), (True, True))  # to the device: pinned or not, copied ahead or not
QUICK_BATCH: Final = 16


class GpuWorkload(FrozenModel):
    """One workload.

    Attributes:
        name: Its name in tables and of its results file.
        dataset: Import string of the dataset factory.
        step: Import string of the step factory, which takes the device.
        batch_size: Samples per batch; never tuned here, because it changes training.
        epochs: Length of a whole training run: two or three seconds at a good configuration.
        dataset_args: Arguments of the dataset factory.
        small: Arguments that make it small enough for a rehearsal.
    """

    name: str
    dataset: str
    step: str
    batch_size: int
    epochs: int
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    small: dict[str, Any]


def _name_parts(name: str) -> dict[str, str]:
    return {
        "name": name,
        "dataset": f"benchmarks.gpu_datasets:make_{name}",
        "step": f"benchmarks.gpu_steps:make_{name}_step",
    }


WORKLOADS: Final = (
    GpuWorkload(**_name_parts("jpeg"), batch_size=64, epochs=3, small={"samples": 96}),
    GpuWorkload(**_name_parts("floats"), batch_size=16, epochs=4, small={"samples": 96, "side": 64}),
    GpuWorkload(**_name_parts("tabular"), batch_size=256, epochs=6, small={"samples": 512}),
    GpuWorkload(**_name_parts("tokens"), batch_size=64, epochs=4, small={"samples": 96, "length": 33}),
)


def find_workload(name: str) -> GpuWorkload:
    """Give the workload of a name.

    Args:
        name: One of the names in `WORKLOADS`.

    Returns:
        The workload.

    Raises:
        KeyError: There is no such workload.
    """
    return {workload.name: workload for workload in WORKLOADS}[name]


def shorten(workload: GpuWorkload) -> GpuWorkload:
    """Make a workload that is measured in half a minute on two CPUs, for a rehearsal."""
    changes = {"dataset_args": workload.small, "batch_size": QUICK_BATCH, "epochs": 2}
    return workload.model_copy(update=changes)


def make_config(batch_size: int, workers: int, *, pinned: bool = False, ahead: bool = False) -> LoaderConfig:
    """Make a configuration of the grid: where there are workers they persist and prefetch two batches each.

    Args:
        batch_size: Samples per batch.
        workers: Worker processes.
        pinned: Whether batches are pinned.
        ahead: Whether the next batch is copied beside the step.

    Returns:
        The configuration.
    """
    kept = HAND if workers else {}
    loader = DataLoaderSettings(batch_size=batch_size, num_workers=workers, pin_memory=pinned, **kept)
    return LoaderConfig(dataloader=loader, process=ProcessSettings(non_blocking=pinned, device_prefetch=ahead))


def list_grid(workload: GpuWorkload, cpus: int, *, quick: bool = False) -> list[LoaderConfig]:
    """List the grid: numbers of workers up to the CPUs, each with every way to the device.

    Args:
        workload: The workload.
        cpus: CPUs that may be used.
        quick: Whether to take two numbers of workers only.

    Returns:
        Distinct configurations.
    """
    workers = {0, 1} if quick else {0, cpus // 8, cpus // 4, cpus // 2, cpus}
    return [
        make_config(workload.batch_size, count, pinned=pinned, ahead=ahead)
        for count in sorted(workers)
        for pinned, ahead in WAYS
    ]


def choose_defaults(workload: GpuWorkload) -> LoaderConfig:
    """Give PyTorch's defaults."""
    return make_config(workload.batch_size, 0)


def choose_by_hand(workload: GpuWorkload, cpus: int) -> LoaderConfig:
    """Give what a careful hand sets without measuring: as many workers as CPUs, persistent, and pinned batches."""
    return make_config(workload.batch_size, cpus, pinned=True)
