"""Asks NVIDIA's management library what torch does not tell: driver, PCIe link, other tenants, utilisation.

The library is optional (`pip install dltune[nvml]`); without it, or where it refuses, every answer is None.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.config import BoundedCount, Fraction, FrozenModel


class GpuState(FrozenModel):
    """What NVML tells of one GPU or of one slice of it (MIG); None for what it does not tell.

    Attributes:
        name: Model, with the slice.
        driver: Version of the driver.
        pcie: Its link at best, as in `gen5 x16`; at rest a GPU lowers it.
        processes: Processes that compute on it.
        utilization: Share of the last moments in which it was computing.
    """

    name: str | None = None
    driver: str | None = None
    pcie: str | None = None
    processes: BoundedCount | None = None
    utilization: Fraction | None = None


def read_gpu_state(uuid: str, library: Any = None) -> GpuState | None:
    """Ask NVML about a GPU.

    Args:
        uuid: By which the driver knows it, with or without `GPU-` in front; `MIG-...` for a slice.
        library: The module `pynvml`, or one like it; None imports it where it is installed.

    Returns:
        What it tells; None where there is no NVML or no such GPU.
    """
    with open_nvml(library) as nvml:
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = _ask(nvml, "nvmlDeviceGetHandleByUUID", full)
        if handle is None:
            return None
        processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        utilization = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        return GpuState(
            name=_read_text(_ask(nvml, "nvmlDeviceGetName", handle)),
            driver=_read_text(_ask(nvml, "nvmlSystemGetDriverVersion")),
            pcie=_describe_link(nvml, handle),
            processes=None if processes is None else len(processes),
            utilization=None if utilization is None else min(1.0, utilization.gpu / 100),
        )


@contextmanager
def open_nvml(library: Any = None) -> Iterator[Any]:
    """Open NVML; gives None where it is not installed or finds no driver."""
    nvml = library or _import_nvml()
    if nvml is None or not _succeeds(nvml.nvmlInit, nvml):
        yield None
        return
    try:
        yield nvml
    finally:
        _succeeds(nvml.nvmlShutdown, nvml)


def _import_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _succeeds(call: Callable[[], object], nvml: Any) -> bool:
    try:
        call()
    except nvml.NVMLError:
        return False
    return True


def _ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Ask one thing; None where this GPU or this driver does not tell it."""
    if nvml is None:
        return None
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError:
        return None


def _read_text(found: Any) -> str | None:
    return found.decode() if isinstance(found, bytes) else found


def _describe_link(nvml: Any, handle: Any) -> str | None:
    generation = _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    return None if generation is None or width is None else f"gen{generation} x{width}"
