"""Copies the next batch to the device while the step computes on this one.

`pin_memory=True` with `non_blocking=True` lets the host go on during a copy, but a copy on the step's own stream
still takes its turn there. On a stream of its own it overlaps with computing, as far as the device can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from autotune.profiles.batches import find_tensors, move_batch


class PendingCopy(NamedTuple):
    """A batch on its way.

    Attributes:
        batch: The batch on the device, to be used once `done` has been passed.
        source: The batch in host memory, which must live until then.
        done: The event behind the copy; None where it was over when the call returned.
    """

    batch: Any
    source: Any = None
    done: Any = None


class H2DCopier(Protocol):
    """Copies batches from the host to a device."""

    def send(self, batch: Any) -> PendingCopy:
        """Begin to copy a batch."""

    def wait(self, copy: PendingCopy) -> Any:
        """Give a batch to the stream that the caller computes on, which waits for it."""


class SyncCopier:
    """Copies on the caller's own stream: right on every device, overlapping on none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, batch: Any) -> PendingCopy:
        """Copy a batch."""
        return PendingCopy(move_batch(batch, self._device))

    def wait(self, copy: PendingCopy) -> Any:
        """Give the batch."""
        return copy.batch


class StreamCopier:
    """Copies on a CUDA stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def send(self, batch: Any) -> PendingCopy:
        """Begin to copy a batch; returns while the copy is under way if the batch is pinned."""
        with torch.cuda.stream(self._stream):
            moved = move_batch(batch, self._device)
            done = torch.cuda.Event()
            done.record(self._stream)
        return PendingCopy(moved, batch, done)

    def wait(self, copy: PendingCopy) -> Any:
        """Have the current stream wait for the copy, and keep the memory from being used again before it is done."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copy.done)
        record_stream(copy.batch, current)
        return copy.batch


def record_stream(batch: Any, stream: Any) -> None:
    """Tell the allocator that a stream uses a batch whose memory another one asked for.

    Custom types are told by their own `record_stream` where they have one.
    """
    if not isinstance(batch, torch.Tensor) and hasattr(batch, "record_stream"):
        batch.record_stream(stream)
        return
    for tensor in find_tensors(batch):
        if tensor.device.type != "cpu":
            tensor.record_stream(stream)


def make_copier(device: torch.device) -> H2DCopier:
    """Make the best copier to a device that there is."""
    return StreamCopier(device) if device.type == "cuda" else SyncCopier(device)


def prefetch_batches(batches: Iterator[Any], copier: H2DCopier) -> Iterator[Any]:
    """Yield each batch on the device when the copy of the next one has begun.

    An error of the loader comes after the batches before it.
    """
    waiting: PendingCopy | None = None
    while True:
        try:
            coming = copier.send(next(batches))
        except StopIteration:
            break
        except Exception:
            if waiting is not None:
                yield copier.wait(waiting)
            raise
        if waiting is not None:
            yield copier.wait(waiting)
        waiting = coming
    if waiting is not None:
        yield copier.wait(waiting)


class DevicePrefetcher:
    """A loader whose batches arrive on the device, copied one ahead.

    Attributes:
        loader: The loader it stands in front of.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader = loader
        self._copier = make_copier(device)

    def __iter__(self) -> Iterator[Any]:
        return prefetch_batches(iter(self.loader), self._copier)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # as far as the loader knows


def device_prefetch(loader: Iterable[Any], device: torch.device | str | int | None = None) -> DevicePrefetcher:
    """Put a loader on the device: the next batch is copied while the step computes on this one.

    Give the loader `pin_memory=True`; copies from pageable memory keep the host waiting and hardly overlap.

    Args:
        loader: A DataLoader, or anything that can be gone through again and again.
        device: Where to; None is the current accelerator, or the CPU where there is none.

    Returns:
        What is gone through in place of the loader; one more batch lies in device memory at a time. On devices
        without CUDA the batches are copied one by one.
    """
    chosen = torch.accelerator.current_accelerator() if device is None else torch.device(device)
    return DevicePrefetcher(loader, chosen or torch.device("cpu"))
