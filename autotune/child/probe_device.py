"""What the probe tells of the accelerator: what it is, and what makes its numbers less sure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autotune.child.device import read_accelerator
from autotune.system.gpus import GpuState, read_gpu_state
from autotune.system.hardware import Accelerator
from autotune.units import format_percent

if TYPE_CHECKING:
    import torch

BUSY_GPU_SHARE: Final = 0.1  # of the time; less is the driver's own


def describe_accelerator(device: torch.device) -> Accelerator | None:
    """Describe the accelerator, with what NVML adds to it; our own process is one of those that use it by now."""
    found = read_accelerator(device)
    if found is None or device.type != "cuda":
        return found
    state = read_gpu_state(found.uuid or "") or GpuState()
    return found.model_copy(
        update={
            "driver": state.driver,
            "pcie": state.pcie,
            "other_processes": max(0, (state.processes or 0) - 1),
            "others_busy": state.utilization or 0.0,
        }
    )


def warn_of_device(device: torch.device, accelerator: Accelerator | None) -> str | None:
    """Say what makes numbers of this device less sure, if anything does."""
    if accelerator is None:
        return None
    if device.type != "cuda":
        return f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory"
    if accelerator.other_processes and accelerator.others_busy > BUSY_GPU_SHARE:
        return (
            f"{accelerator.other_processes} other processes kept the GPU busy "
            f"{format_percent(accelerator.others_busy)} of the time before the probe: its numbers are lower than alone"
        )
    return None
