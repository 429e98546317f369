"""The little that dltune needs of an accelerator. On the CPU every call here is free.

CUDA is known in full. Other accelerators (Apple's mps, Intel's xpu) are reached through `torch.accelerator`, without
pinning, budgets or a timer of their own.
"""

from __future__ import annotations

import time
from typing import Final

import torch

from autotune.child.timers import CudaStepTimer, HostStepTimer, StepTimer
from autotune.errors import UsageError
from autotune.system.machine import Accelerator

CALIBRATION_CYCLES: Final = 50_000_000  # 25 to 50 ms: an idle GPU takes as long to raise its clock


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """Make the device that the user named the current one, `auto` being an accelerator or else the CPU.

    Where it is named without a number, each rank takes the one of its own number, in turn where there are fewer.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    try:
        device = accelerator or torch.device("cpu") if name == "auto" else torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: not a torch device. Use auto, cpu or one such as cuda:0.") from None
    if device.type == "cpu":
        return device
    if accelerator is None or device.type != accelerator.type:
        raise UsageError(f"--device {name}: torch finds no such accelerator here. Use --device cpu or auto.")
    count = torch.accelerator.device_count()
    index = rank % count if device.index is None else device.index
    if index >= count:
        raise UsageError(f"--device {name}: this machine has {count} of them.")
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def make_step_timer(device: torch.device) -> StepTimer:
    """Start a timer that tells when the device ends each step, without waiting for it."""
    if device.type == "cuda":
        return CudaStepTimer(lambda: torch.cuda.Event(enable_timing=True, blocking=True))
    return HostStepTimer()


def read_accelerator(device: torch.device) -> Accelerator | None:
    """Read what the accelerator is; None on the CPU."""
    if device.type == "cpu":
        return None
    count = torch.accelerator.device_count()
    if device.type != "cuda":
        return Accelerator(name=device.type, count=count)
    facts = torch.cuda.get_device_properties(device)
    alike = [index for index in range(count) if torch.cuda.get_device_name(index) == facts.name]
    return Accelerator(
        name=facts.name,
        count=len(alike),
        memory_bytes=facts.total_memory,
    )


def warn_of_device(device: torch.device) -> str | None:
    """Return a warning about a device whose measurements are less certain; None for the CPU and CUDA."""
    if device.type in ("cpu", "cuda"):
        return None
    return f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory"


def read_free_memory(device: torch.device) -> int:
    """Read the device memory that this process holds or could still get, in bytes; 0 where it does not tell.

    What other processes hold, and what CUDA itself took for this one, is not in it.
    """
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + int(torch.cuda.memory_reserved(device))


def limit_memory(device: torch.device, limit_bytes: int | None) -> None:
    """Have CUDA's allocator refuse to hold more than this, as if the device had no more; None leaves it as it is."""
    if device.type == "cuda" and limit_bytes is not None:
        share = min(1.0, limit_bytes / torch.cuda.get_device_properties(device).total_memory)
        torch.cuda.set_per_process_memory_fraction(share, device)


def reset_peak(device: torch.device) -> None:
    """Give back what the allocator keeps for later, and start to record its peak anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> int:
    """Read the largest device memory the allocator held since `reset_peak`, in bytes."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


class SimulatedStep:
    """Keeps a device busy for a given time without keeping the host busy.

    On the CPU, where host and device are one, the caller sleeps. On CUDA a kernel spins for a number of
    clock cycles, calibrated once by events.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds = seconds
        self._cycles = int(seconds * _cycles_per_second(device)) if device.type == "cuda" else 0

    def __call__(self) -> None:
        """Occupy the device once."""
        if self._cycles:
            torch.cuda._sleep(self._cycles)
        else:
            time.sleep(self._seconds)


def _cycles_per_second(device: torch.device) -> float:
    """Measure the cycles that torch's spinning kernel counts in a second, once the device is awake."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(CALIBRATION_CYCLES)
    start.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    torch.cuda.synchronize(device)
    milliseconds: float = start.elapsed_time(end)
    return CALIBRATION_CYCLES / (milliseconds / 1000)
