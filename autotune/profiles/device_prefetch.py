"""Copies the next batch to the device while the step computes on the current one, and walks through nested batches.

With `pin_memory=True` and `non_blocking=True` the host continues during a copy, but a copy on the stream of the step
waits for the step. On its own stream it overlaps with the step.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch


def find_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a batch, in a stable order."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        parts = batch
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    elif type(batch).__module__ != "builtins" and hasattr(batch, "__dict__"):
        parts = list(vars(batch).values())
    for part in parts:
        yield from find_tensors(part)


def move_batch(batch: Any, device: torch.device) -> Any:
    """Copy a batch to a device, asynchronously if it is pinned and the device is CUDA's.

    Custom types are moved by their own `to(device)`, if they have it; other values without tensors are unchanged.
    """
    if isinstance(batch, torch.Tensor) or hasattr(batch, "to"):
        if device.type != "cuda":
            return batch.to(device)
        try:
            return batch.to(device, non_blocking=True)
        except TypeError:  # a custom `to` may take only the device
            return batch.to(device)

    if isinstance(batch, Mapping):
        values = {key: move_batch(value, device) for key, value in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return values
        moved = copy.copy(batch)  # with its attributes, as torch does when it pins one
        moved.update(values)
        return moved
    if isinstance(batch, list | tuple):
        parts = [move_batch(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        replaced: Any = copy.copy(batch)  # the constructor may not take all of its fields
        for field in dataclasses.fields(batch):
            object.__setattr__(replaced, field.name, move_batch(getattr(batch, field.name), device))  # also if frozen
        return replaced
    return batch


class PendingCopy(NamedTuple):
    """A batch that is being copied."""

    batch: Any  # on the device
    source: Any = None  # in host memory, which must exist until the end of the copy
    done: Any = None  # the event after the copy; None if it is complete


class DeviceCopier:
    """Copies batches to a device: to CUDA on its own stream, else synchronously."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: Any) -> PendingCopy:
        """Start to copy a batch; returns before the end of the copy if the batch is pinned."""
        if self._stream is None:
            return PendingCopy(move_batch(batch, self._device))
        with torch.cuda.stream(self._stream):
            moved = move_batch(batch, self._device)
            done = torch.cuda.Event()
            done.record(self._stream)
        return PendingCopy(moved, batch, done)

    def wait(self, pending: PendingCopy) -> Any:
        """Return the batch for the current stream, which waits for the copy."""
        if pending.done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(pending.done)
            record_stream(pending.batch, current)
        return pending.batch


def record_stream(batch: Any, stream: Any) -> None:
    """Keep the allocator from reusing the memory of a batch before a stream has finished with it.

    The memory was allocated on another stream. Custom types may have their own `record_stream`.
    """
    if not isinstance(batch, torch.Tensor) and hasattr(batch, "record_stream"):
        batch.record_stream(stream)
        return
    for tensor in find_tensors(batch):
        if tensor.device.type != "cpu":
            tensor.record_stream(stream)


def prefetch_batches(batches: Iterator[Any], copier: DeviceCopier) -> Iterator[Any]:
    """Yield each batch on the device after the copy of the next one has started.

    An error of the loader is raised after the batches before it.
    """
    pending: PendingCopy | None = None
    while True:
        try:
            following = copier.send(next(batches))
        except Exception as error:
            if pending is not None:
                yield copier.wait(pending)
            if isinstance(error, StopIteration):
                return
            raise
        if pending is not None:
            yield copier.wait(pending)
        pending = following


class DevicePrefetcher:
    """A loader whose batches arrive on the device, copied one ahead."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader = loader
        self._copier = DeviceCopier(device)

    def __iter__(self) -> Iterator[Any]:
        return prefetch_batches(iter(self.loader), self._copier)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # if the loader has a length


def device_prefetch(loader: Iterable[Any], device: torch.device | str | int | None = None) -> DevicePrefetcher:
    """Return a loader whose next batch is copied to the device while the step computes on the current one.

    The loader needs `pin_memory=True`: copies from pageable memory block the host and hardly overlap.

    Args:
        loader: A DataLoader, or any iterable that can be iterated again.
        device: The target; None is the current accelerator, or the CPU.

    Returns:
        An iterable to use instead of the loader. It needs device memory for one more batch. Only CUDA devices copy
        asynchronously.
    """
    if device is None:  # of a build for CUDA, current_accelerator() is CUDA even on a machine without a GPU
        available = torch.accelerator.is_available()
        return DevicePrefetcher(
            loader, (torch.accelerator.current_accelerator() if available else None) or torch.device("cpu")
        )
    return DevicePrefetcher(loader, torch.device(device))
