"""Which accelerators are here, without starting torch or CUDA: from the driver's lists, the device files and NVML.

NVIDIA's management library tells what torch does not: driver, PCIe link, other tenants, utilization. It is optional
(`pip install dltune[nvml]`); without it, or where it refuses, every answer is None.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.system.kernel_files import DEV, PROC, read_text

VISIBLE_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class _Gpu(NamedTuple):
    model: str
    uuid: str


def read_gpus(proc: Path = PROC, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Name the NVIDIA GPUs that a training process here would see, as `torch.cuda.get_device_name` spells them.

    A slice of one (MIG) ends in `MIG`, for the driver does not say here which slice it is.
    """
    gpus = [_read_gpu(path) for path in sorted(proc.glob("driver/nvidia/gpus/*/information"))]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(gpu.model for gpu in gpus)
    names = []
    for entry in visible.split(","):
        name = _find_visible(entry.strip(), gpus)
        if name is None:
            break  # as CUDA does: what follows an invalid entry is not seen
        names.append(name)
    return tuple(names)


def _read_gpu(path: Path) -> _Gpu:
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    return _Gpu(facts.get("Model", "unknown GPU"), facts.get("GPU UUID", ""))


def _find_visible(entry: str, gpus: Sequence[_Gpu]) -> str | None:
    """Name the GPU that an entry of CUDA_VISIBLE_DEVICES means: a number, or the beginning of a UUID."""
    if entry.isdecimal():
        return gpus[int(entry)].model if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        return f"{gpus[0].model} MIG" if gpus else None
    return next((gpu.model for gpu in gpus if entry and gpu.uuid.startswith(entry)), None)


def may_have(gpu: str, dev: Path = DEV, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether an accelerator that `read_gpus` does not list may be here all the same.

    NVIDIA's driver lists its GPUs on Linux itself; in WSL, and those of AMD and Intel, have no name that can be read
    without starting them. A process that can use one has its device file, and more is not asked for.
    """
    if any(environ.get(name, "unset").strip() in ("", "-1") for name in VISIBLE_DEVICES):
        return False
    is_amd = re.search(r"\b(AMD|Radeon|Instinct)\b", gpu) is not None
    file = "dri/renderD*" if gpu == "xpu" else "kfd" if is_amd else "dxg"
    return any(dev.glob(file))


@dataclass(frozen=True, slots=True)
class GpuState:
    """What NVML tells of one GPU or of one slice of it (MIG); None for what it does not tell."""

    driver: str | None = None
    pcie: str | None = None  # the link at best, as in `gen5 x16`; at rest a GPU lowers it
    processes: int | None = None  # that compute on it
    utilization: float | None = None  # share of the last moments in which it was computing


def read_gpu_state(uuid: str, library: Any = None) -> GpuState | None:
    """Ask NVML about the GPU or slice (`MIG-...`) that the driver knows by a UUID, with or without `GPU-` in front."""
    with open_nvml(library) as nvml:
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        handle = _ask(nvml, "nvmlDeviceGetHandleByUUID", full)
        if handle is None:
            return None
        processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
        utilization = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        driver = _ask(nvml, "nvmlSystemGetDriverVersion")
        return GpuState(
            driver=driver.decode() if isinstance(driver, bytes) else driver,
            pcie=_describe_link(nvml, handle),
            processes=None if processes is None else len(processes),
            utilization=None if utilization is None else min(1.0, utilization.gpu / 100),
        )


@contextmanager
def open_nvml(library: Any = None) -> Iterator[Any]:
    """Open NVML; gives None where it is not installed or finds no driver."""
    try:
        nvml = library or importlib.import_module("pynvml")
    except ImportError:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        _ask(nvml, "nvmlShutdown")


def _ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Ask one thing; None where this GPU or this driver does not tell it."""
    if nvml is None:
        return None
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError:
        return None


def _describe_link(nvml: Any, handle: Any) -> str | None:
    generation = _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    return None if generation is None or width is None else f"gen{generation} x{width}"
