"""Measures the last metre: how fast a batch gets to the device, and whether that can hide behind computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from autotune.child.device import EmulatedStep, synchronize
from autotune.profiles.batches import find_tensors
from autotune.profiles.device_prefetch import PendingCopy, StreamCopier
from autotune.trial.workload_profile import H2DBandwidth

if TYPE_CHECKING:
    import torch

WARM_UP: Final = 3
WINDOW_SECONDS: Final = 0.1  # of copying one batch again and again; many copies, one synchronisation
MAX_COPIES: Final = 200
MIN_COPIES: Final = 5
MIN_BUSY_SECONDS: Final = 1e-3  # a shorter spell of computing drowns in the cost of starting it


class Bench(Protocol):
    """What the measurement asks of a device."""

    def send(self, tensors: Sequence[torch.Tensor]) -> object:
        """Copy tensors on the stream that computes."""

    def send_aside(self, tensors: Sequence[torch.Tensor]) -> object:
        """Copy tensors on a stream of their own."""

    def pin(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give page-locked copies."""

    def occupy(self, seconds: float) -> Callable[[], None]:
        """Give what keeps the device computing for so long."""

    def settle(self) -> None:
        """Wait until the device has done all it was given."""


class CudaBench:
    """A CUDA device.

    Args:
        device: Which one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = StreamCopier(device)

    def send(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy tensors on the stream that computes."""
        return [tensor.to(self._device, non_blocking=True) for tensor in tensors]

    def send_aside(self, tensors: Sequence[torch.Tensor]) -> PendingCopy:
        """Copy tensors on a stream of their own."""
        return self._lane.send(list(tensors))

    def pin(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give page-locked copies."""
        return [tensor.pin_memory() for tensor in tensors]

    def occupy(self, seconds: float) -> Callable[[], None]:
        """Give what keeps the device computing for so long."""
        return EmulatedStep(self._device, seconds)

    def settle(self) -> None:
        """Wait until the device has done all it was given."""
        synchronize(self._device)


def measure_copies(batch: Any, bench: Bench, now: Callable[[], float] = time.perf_counter) -> H2DBandwidth | None:
    """Measure how fast the tensors of a batch get to the device.

    Args:
        batch: What the loader delivered, in host memory.
        bench: The device.
        now: Gives the moment, in seconds.

    Returns:
        The rates, and how much of a copy a busy device hides; None for a batch without tensors in host memory.
    """
    tensors = [tensor.detach() for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if not size:
        return None
    pinned = bench.pin(tensors)
    pageable_seconds = time_often(lambda: bench.send(tensors), bench.settle, now)
    pinned_seconds = time_often(lambda: bench.send(pinned), bench.settle, now)
    return H2DBandwidth(
        pageable=size / pageable_seconds,
        pinned=size / pinned_seconds,
        overlap=_measure_overlap(pinned, pinned_seconds, bench, now),
    )


def time_often(
    work: Callable[[], object], settle: Callable[[], None], now: Callable[[], float] = time.perf_counter
) -> float:
    """Time what a device does, with one synchronisation for many calls.

    Args:
        work: Gives the device something to do.
        settle: Waits until it has done it.
        now: Gives the moment, in seconds.

    Returns:
        Seconds per call, greater than zero.
    """
    for _ in range(WARM_UP):
        work()
    settle()
    started = now()
    work()
    settle()
    once = max(1e-7, now() - started)
    calls = max(MIN_COPIES, min(MAX_COPIES, int(WINDOW_SECONDS / once)))
    started = now()
    for _ in range(calls):
        work()
    settle()
    return max(1e-9, (now() - started) / calls)


def _measure_overlap(
    pinned: Sequence[torch.Tensor], copy_seconds: float, bench: Bench, now: Callable[[], float]
) -> float:
    """Have the device compute for about as long as a copy takes, beside it: what both together save was hidden."""
    compute = bench.occupy(max(copy_seconds, MIN_BUSY_SECONDS))
    copies = max(1, round(MIN_BUSY_SECONDS / copy_seconds))

    def copy() -> None:
        for _ in range(copies):
            bench.send_aside(pinned)

    def both() -> None:
        compute()
        copy()

    computing, copying, together = (time_often(work, bench.settle, now) for work in (compute, copy, both))
    return find_overlap(computing, copying, together)


def find_overlap(computing: float, copying: float, together: float) -> float:
    """Give the share of the shorter of two works that was hidden behind the longer.

    Args:
        computing: Seconds of the one alone, greater than zero.
        copying: Seconds of the other alone, greater than zero.
        together: Seconds of both, started together.

    Returns:
        From 0, one after the other, to 1, side by side.
    """
    return min(1.0, max(0.0, (computing + copying - together) / min(computing, copying)))
