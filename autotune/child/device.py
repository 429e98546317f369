"""The device of a trial. CUDA is supported in full; other accelerators through `torch.accelerator`, without pinning.

On the CPU every call is free, except those about its threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from autotune.child.timers import CudaStepTimer, HostStepTimer, StepTimer
from autotune.errors import UsageError
from autotune.system.machine import Accelerator

CALIBRATION_CYCLES: Final = 50_000_000  # 25 to 50 ms: an idle GPU takes as long to raise its clock


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """Make the named device the current one; `auto` is an accelerator, or the CPU if there is none.

    Without a number in the name, ranks use the devices in turn.
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
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def make_step_timer(device: torch.device) -> StepTimer:
    """Start a timer of the steps on this device."""
    if device.type == "cuda":
        return CudaStepTimer(lambda: torch.cuda.Event(enable_timing=True, blocking=True))
    return HostStepTimer()


def read_accelerator(device: torch.device) -> Accelerator | None:
    """Describe the accelerator and count those of the same kind; None on the CPU."""
    if device.type == "cpu":
        return None
    count = torch.accelerator.device_count()
    if device.type != "cuda":
        return Accelerator(name=device.type, count=count)
    facts = torch.cuda.get_device_properties(device)
    same = sum(torch.cuda.get_device_name(index) == facts.name for index in range(count))
    return Accelerator(name=facts.name, count=same, memory_bytes=facts.total_memory)


def warn_of_device(device: torch.device) -> str | None:
    """Return a warning about a device whose measurements are less certain; None for the CPU and CUDA."""
    if device.type in ("cpu", "cuda"):
        return None
    return f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory"


def read_free_memory(device: torch.device) -> int:
    """Return the device memory that this process holds or could still get, in bytes; 0 if unknown."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + int(torch.cuda.memory_reserved(device))


def limit_memory(device: torch.device, limit_bytes: int | None) -> None:
    """Limit what CUDA's allocator may hold; None leaves the limit unchanged."""
    if device.type == "cuda" and limit_bytes is not None:
        share = min(1.0, limit_bytes / torch.cuda.get_device_properties(device).total_memory)
        torch.cuda.set_per_process_memory_fraction(share, device)


def reset_peak(device: torch.device) -> None:
    """Empty the allocator's cache and reset its peak."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> int:
    """Return the peak memory of the allocator since `reset_peak`, in bytes."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread, as every worker does; the spinning of others would count as CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class SimulatedStep:
    """Keeps a device busy for a given time: the CPU sleeps, CUDA spins for a number of calibrated clock cycles."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds, self._cycles = seconds, 0
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(CALIBRATION_CYCLES)  # wakes the device
            start.record()
            torch.cuda._sleep(CALIBRATION_CYCLES)
            end.record()
            torch.cuda.synchronize(device)
            self._cycles = int(seconds * CALIBRATION_CYCLES / (start.elapsed_time(end) / 1000))

    def __call__(self, _: object = None) -> None:
        """Occupy the device once; as a step, for a batch that is on the device."""
        torch.cuda._sleep(self._cycles) if self._cycles else time.sleep(self._seconds)
