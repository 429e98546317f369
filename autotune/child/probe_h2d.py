"""Measures the last metre: how fast a batch gets to the device, and whether that can hide behind computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from autotune.child.device import SimulatedStep, synchronize
from autotune.child.timing import time_device_calls
from autotune.profiles.device_prefetch import DeviceCopier, find_tensors
from autotune.protocol.workload_profile import H2DBandwidth

if TYPE_CHECKING:
    import torch

MIN_BUSY_SECONDS: Final = 1e-3  # a shorter spell of computing drowns in the cost of starting it


class H2DBench:
    """A CUDA device that copies are timed on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copier = DeviceCopier(device)

    def now(self) -> float:
        """Read the clock, in seconds."""
        return time.perf_counter()

    def pin(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give page-locked copies."""
        return [tensor.pin_memory() for tensor in tensors]

    def send(self, tensors: Sequence[torch.Tensor]) -> object:
        """Copy tensors on the stream that computes."""
        return [tensor.to(self._device, non_blocking=True) for tensor in tensors]

    def send_aside(self, tensors: Sequence[torch.Tensor]) -> object:
        """Copy tensors on a stream of their own."""
        return self._copier.send(list(tensors))

    def occupy(self, seconds: float) -> Callable[[], None]:
        """Give what keeps the device computing for so long."""
        return SimulatedStep(self._device, seconds)

    def settle(self) -> None:
        """Wait until the device has done all it was given."""
        synchronize(self._device)

    def time(self, work: Callable[[], object]) -> float:
        """Give the seconds that the device takes for some work, above zero."""
        return time_device_calls(work, self.settle, self.now)


def measure_h2d(batch: Any, bench: H2DBench) -> H2DBandwidth | None:
    """Measure how fast the tensors of a batch get to the device; None where none of them is in host memory."""
    tensors = [tensor.detach() for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if not size:
        return None
    pinned = bench.pin(tensors)
    pageable_seconds = bench.time(lambda: bench.send(tensors))
    pinned_seconds = bench.time(lambda: bench.send(pinned))
    return H2DBandwidth(
        pageable=size / pageable_seconds,
        pinned=size / pinned_seconds,
        overlap=_measure_overlap(pinned, pinned_seconds, bench),
    )


def _measure_overlap(pinned: Sequence[torch.Tensor], copy_seconds: float, bench: H2DBench) -> float:
    """Have the device compute for about as long as a copy takes, beside it: what both together save was hidden."""
    compute = bench.occupy(max(copy_seconds, MIN_BUSY_SECONDS))
    copies = max(1, round(MIN_BUSY_SECONDS / copy_seconds))

    def copy() -> None:
        for _ in range(copies):
            bench.send_aside(pinned)

    def both() -> None:
        compute()
        copy()

    return overlap_fraction(*(bench.time(work) for work in (compute, copy, both)))


def overlap_fraction(computing: float, copying: float, together: float) -> float:
    """Give the share of the shorter of two works that was hidden behind the longer: 0 in turn, 1 side by side.

    All are in seconds, above zero: the one alone, the other alone, both started together.
    """
    return min(1.0, max(0.0, (computing + copying - together) / min(computing, copying)))
