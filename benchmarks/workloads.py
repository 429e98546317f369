"""The workloads of the suite, and the grid of configurations that each is held against."""

from __future__ import annotations

from typing import Any, Final

from autotune.config import DataLoaderSettings, FrozenModel, LoaderConfig, ProcessSettings, SharingStrategy

HAND: Final[dict[str, Any]] = {"prefetch_factor": 2, "persistent_workers": True}  # what a careful hand sets


class BenchWorkload(FrozenModel):
    """One workload and what is tried on it.

    Attributes:
        name: Its name in tables and of its results file.
        dataset: Import string of the dataset factory.
        batch_size: Samples per batch; never tuned here, because it changes training.
        step_seconds: Seconds an emulated step takes for a batch: the process sleeps, as beside an accelerator.
        step: Import string of a real step, which computes on the CPUs that load; None for an emulated one.
        workers: Worker counts of the grid, on both sides of the optimum of a machine with two CPUs.
        prefetch: Prefetch factors of the grid.
        unordered: Worker counts that are tried with `in_order=False` as well.
        restarting: Worker counts that are tried with `persistent_workers=False` as well.
        epochs: Length of a whole training run.
    """

    name: str
    dataset: str
    batch_size: int
    step_seconds: float = 0.0
    step: str | None = None
    workers: tuple[int, ...]
    prefetch: tuple[int, ...] = (1, 2, 4)
    unordered: tuple[int, ...] = ()
    restarting: tuple[int, ...] = ()
    epochs: int = 10


WORKLOADS: Final = (
    BenchWorkload(
        name="tutorial",
        dataset="examples.tutorial:make_dataset",
        batch_size=32,
        step_seconds=0.010,
        workers=(0, 2, 4, 8, 12, 16, 24),
        unordered=(8, 12, 16),
        restarting=(8, 12),
    ),
    BenchWorkload(
        name="decode",
        dataset="benchmarks.datasets:make_decode",
        batch_size=32,
        step_seconds=0.003,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(2, 3, 4),
        restarting=(2, 3),
    ),
    BenchWorkload(
        name="reads",
        dataset="benchmarks.datasets:make_reads",
        batch_size=32,
        step_seconds=0.005,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        unordered=(12, 16, 24),
        restarting=(8, 16),
    ),
    BenchWorkload(
        name="heavy_tail",
        dataset="benchmarks.datasets:make_heavy_tail",
        batch_size=32,
        step_seconds=0.005,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        unordered=(8, 12, 16, 24),
        restarting=(8, 16),
    ),
    BenchWorkload(
        name="queries",
        dataset="benchmarks.datasets:make_queries",
        batch_size=32,
        step_seconds=0.005,
        workers=(0, 1, 2, 3, 4, 6, 8, 12),
        unordered=(4, 6, 8),
        restarting=(4, 6),
    ),
    BenchWorkload(
        name="stream",
        dataset="benchmarks.datasets:make_stream",
        batch_size=32,
        step_seconds=0.002,
        workers=(0, 2, 4, 8, 12, 16, 24, 32),
        restarting=(8, 12, 16),
    ),
    BenchWorkload(
        name="memory",
        dataset="benchmarks.datasets:make_memory",
        batch_size=32,
        step_seconds=0.001,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(1, 2),
        restarting=(1, 2),
    ),
    BenchWorkload(
        name="large",
        dataset="benchmarks.datasets:make_large",
        batch_size=8,
        step_seconds=0.010,
        workers=(0, 1, 2, 3, 4, 6, 8),
        unordered=(2, 3),
        restarting=(1, 2),
    ),
    BenchWorkload(
        name="slow_start",
        dataset="benchmarks.datasets:make_slow_start",
        batch_size=32,
        step_seconds=0.005,
        workers=(0, 1, 2, 3, 4, 6, 8, 12),
        unordered=(4, 6, 8),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="images",
        dataset="examples.images:make_dataset",
        batch_size=32,
        step="examples.images:make_step",
        workers=(0, 1, 2, 3, 4, 7),
        unordered=(2, 4),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="decode_train",
        dataset="benchmarks.datasets:make_decode",
        batch_size=32,
        step="examples.images:make_step",
        workers=(0, 1, 2, 3, 4, 6),
        unordered=(2, 4),
        restarting=(2, 4),
    ),
    BenchWorkload(
        name="memory_train",
        dataset="benchmarks.datasets:make_memory",
        batch_size=32,
        step="benchmarks.datasets:make_step",
        workers=(0, 1, 2, 3, 4, 6),
        unordered=(1, 2),
        restarting=(1, 2),
    ),
)


def find_workload(name: str) -> BenchWorkload:
    """Give the workload of a name.

    Args:
        name: One of the names in `WORKLOADS`.

    Returns:
        The workload.

    Raises:
        KeyError: There is no such workload.
    """
    return {workload.name: workload for workload in WORKLOADS}[name]


def list_grid(workload: BenchWorkload) -> list[dict[str, Any]]:
    """List the grid as arguments of DataLoader.

    Args:
        workload: The workload.

    Returns:
        Distinct combinations, all of them legal: prefetch, persistence and order have no meaning without workers.
    """
    size = {"batch_size": workload.batch_size}
    grid: list[dict[str, Any]] = [size | {"num_workers": 0} for workers in workload.workers if workers == 0]
    busy = [workers for workers in workload.workers if workers]
    grid += [
        size | {"num_workers": workers, "prefetch_factor": prefetch, "persistent_workers": True, "in_order": True}
        for workers in busy
        for prefetch in workload.prefetch
    ]
    grid += [size | HAND | {"num_workers": workers, "in_order": False} for workers in workload.unordered]
    grid += [
        size | HAND | {"num_workers": workers, "persistent_workers": False, "in_order": True}
        for workers in workload.restarting
    ]
    return grid


def list_spread(workload: BenchWorkload) -> list[dict[str, Any]]:
    """List configurations far from any optimum, on which a prediction must hold as well."""
    return [{"batch_size": workload.batch_size, "num_workers": 4, "prefetch_factor": 1, "persistent_workers": False}]


def choose_by_hand(workload: BenchWorkload, cpus: int) -> dict[str, Any]:
    """Give what a careful hand sets without measuring: as many workers as CPUs, kept from epoch to epoch."""
    return {"batch_size": workload.batch_size, "num_workers": cpus} | HAND


def make_sibling(config: LoaderConfig) -> LoaderConfig:
    """Give what a careful hand would set with the same workers: nothing that needs a reason."""
    loader = config.dataloader
    size = {} if loader.batch_size is None else {"batch_size": loader.batch_size}
    return as_config(size | {"num_workers": loader.num_workers} | (HAND if loader.num_workers else {}))


def as_config(kwargs: dict[str, Any], sharing_strategy: SharingStrategy = "file_descriptor") -> LoaderConfig:
    """Make a configuration of arguments for DataLoader, with what they leave out as torch fills it in.

    Args:
        kwargs: The arguments.
        sharing_strategy: How the process hands batches over.

    Returns:
        The configuration: equal for arguments that mean the same.
    """
    usual: dict[str, Any] = {"prefetch_factor": 2} if kwargs.get("num_workers") else {}
    settings = DataLoaderSettings(**usual | kwargs)
    return LoaderConfig(dataloader=settings, process=ProcessSettings(sharing_strategy=sharing_strategy))
