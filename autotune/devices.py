"""The little that dltune needs of an accelerator. On the CPU every call here is free."""

from __future__ import annotations

import time

import torch

from autotune.errors import UsageError

CALIBRATION_CYCLES = 10_000_000


def resolve_device(name: str) -> torch.device:
    """Turn the user's words into a device that exists here.

    Args:
        name: `auto` for the current accelerator or else the CPU, or a torch device string.

    Returns:
        The device, made current.

    Raises:
        UsageError: The device is not known or not there.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = accelerator or torch.device("cpu") if name == "auto" else _parse_device(name)
    if device.type == "cpu":
        return device
    if accelerator is None or device.type != accelerator.type:
        raise UsageError(f"--device {name}: torch finds no such accelerator here. Use --device cpu or auto.")
    if (device.index or 0) >= torch.accelerator.device_count():
        raise UsageError(f"--device {name}: this machine has {torch.accelerator.device_count()} of them.")
    torch.accelerator.set_device_index(device.index or 0)
    return torch.device(device.type, device.index or 0)


def _parse_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: not a torch device. Use auto, cpu or one such as cuda:0.") from None


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def can_pin(device: torch.device) -> bool:
    """Tell whether pinned host memory speeds copies to the device up."""
    return device.type == "cuda"


def read_name(device: torch.device) -> str | None:
    """Name the accelerator; None on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return None if device.type == "cpu" else device.type


def read_memory(device: torch.device) -> int:
    """Read the memory of the accelerator in bytes; 0 where there is none or it does not tell."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Start to record the allocator's peak anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> int:
    """Read the largest device memory the allocator held since `reset_peak`, in bytes."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


class BusyDevice:
    """Keeps a device busy for a given time without keeping the host busy.

    On the CPU, where host and device are one, the caller sleeps. On CUDA a kernel spins for a number of
    clock cycles, calibrated once by events.

    Args:
        device: The device.
        seconds: How long it is busy at each call.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds = seconds
        self._cycles = int(seconds * _measure_clock(device)) if device.type == "cuda" else 0

    def __call__(self) -> None:
        """Occupy the device once."""
        if self._cycles:
            torch.cuda._sleep(self._cycles)
        else:
            time.sleep(self._seconds)


def _measure_clock(device: torch.device) -> float:
    """Measure the cycles that torch's spinning kernel counts in a second."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(CALIBRATION_CYCLES)
    start.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    torch.cuda.synchronize(device)
    milliseconds: float = start.elapsed_time(end)
    return CALIBRATION_CYCLES / (milliseconds / 1000)
