"""The grid of configurations of a workload, and those that people set without measuring."""

from __future__ import annotations

from typing import Any, Final

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from benchmarks.workloads.workload import BenchWorkload

RECOMMENDED: Final[dict[str, Any]] = {"prefetch_factor": 2, "persistent_workers": True}  # recommended defaults
TRANSFERS: Final = ((False, False), (True, False), (True, True))  # to the device: pinned or not, copied ahead or not


def as_config(kwargs: dict[str, Any]) -> LoaderConfig:
    """Make a configuration of DataLoader's arguments: equal for arguments that mean the same."""
    usual: dict[str, Any] = {"prefetch_factor": 2} if kwargs.get("num_workers") else {}
    return LoaderConfig(dataloader=DataLoaderSettings(**usual | kwargs))


def make_config(batch_size: int | None, workers: int, *, pinned: bool = False, ahead: bool = False) -> LoaderConfig:
    """Return a configuration at recommended defaults; `ahead` copies the next batch during the step."""
    kept = RECOMMENDED if workers else {}
    size = {} if batch_size is None else {"batch_size": batch_size}
    loader = DataLoaderSettings(**size, num_workers=workers, pin_memory=pinned, **kept)
    return LoaderConfig(dataloader=loader, process=ProcessSettings(non_blocking=pinned, device_prefetch=ahead))


def list_grid(workload: BenchWorkload, cpus: int) -> list[LoaderConfig]:
    """List the grid: distinct configurations, all of them legal."""
    return _list_orders(workload) if workload.device is None else _list_transfers(workload, cpus)


def _list_transfers(workload: BenchWorkload, cpus: int) -> list[LoaderConfig]:
    """List numbers of workers up to the CPUs, each with every way to the device."""
    return [
        make_config(workload.batch_size, workers, pinned=pinned, ahead=ahead)
        for workers in sorted({*workload.workers} or {0, cpus // 8, cpus // 4, cpus // 2, cpus})
        for pinned, ahead in TRANSFERS
    ]


def _list_orders(workload: BenchWorkload) -> list[LoaderConfig]:
    """List numbers of workers with prefetch, and for some without order or persistence."""
    size = {"batch_size": workload.batch_size}
    grid: list[dict[str, Any]] = [{"num_workers": 0} for workers in workload.workers if workers == 0]
    grid += [
        RECOMMENDED | {"num_workers": workers, "prefetch_factor": prefetch}
        for workers in workload.workers
        if workers
        for prefetch in workload.prefetch
    ]
    grid += [RECOMMENDED | {"num_workers": workers, "in_order": False} for workers in workload.unordered]
    grid += [RECOMMENDED | {"num_workers": workers, "persistent_workers": False} for workers in workload.restarting]
    return [as_config(size | kwargs) for kwargs in grid]


def choose_defaults(workload: BenchWorkload) -> LoaderConfig:
    """Return PyTorch's defaults."""
    return make_config(workload.batch_size, 0)


def choose_cpus(workload: BenchWorkload, cpus: int) -> LoaderConfig:
    """Return the rule of thumb: as many workers as CPUs, and pinned memory if there is a device."""
    return make_config(workload.batch_size, cpus, pinned=workload.device is not None)
