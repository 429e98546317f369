"""Copies the next batch to the device on its own CUDA stream, so that the copy overlaps with the training step."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import UserString
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

import torch

MAX_DEPTH: Final = 500  # of objects within objects
LEAVES: Final = frozenset({int, float, bool, str, bytes, type(None)})  # a batch may be lists of many of them


def find_tensors(batch: Any, seen: dict[int, Any] | None = None, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield every tensor in a batch, in a stable order; the parts of an object only once.

    Raises:
        RecursionError: It is nested too deeply, such as a sequence whose items are new sequences.
    """
    seen = {} if seen is None else seen
    if isinstance(batch, torch.Tensor):
        yield batch
    elif id(batch) not in seen and (parts := _list_parts(batch)) is not None:
        if depth > MAX_DEPTH:
            raise RecursionError("a batch is nested too deeply")
        seen[id(batch)] = batch  # an object that is kept cannot give its id to another one
        for part in parts:
            if type(part) not in LEAVES:
                yield from find_tensors(part, seen, depth + 1)


def _list_parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, str | UserString | bytes | type | Enum):
        return None
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Sequence):
        return value
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    is_custom = type(value).__module__ != "builtins" and hasattr(value, "__dict__")
    return list(vars(value).values()) if is_custom else None


def move_batch(batch: Any, device: torch.device) -> Any:
    """Copy a batch to a device, asynchronously if it is pinned and the device is CUDA's.

    Custom types are moved by their own `to(device)`, if they have it; other values without tensors are unchanged.
    """
    if isinstance(batch, torch.Tensor) or hasattr(batch, "to"):
        if device.type == "cuda":
            with contextlib.suppress(TypeError):  # a custom `to` may take only the device
                return batch.to(device, non_blocking=True)
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
        result: Any = copy.copy(batch)
        for field in dataclasses.fields(batch):  # also of a frozen dataclass, or one with its own constructor
            object.__setattr__(result, field.name, move_batch(getattr(batch, field.name), device))
        return result
    return batch


class DeviceCopier:
    """Copies batches to a device: to CUDA on its own stream, else synchronously."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: Any) -> Callable[[], Any]:
        """Start to copy a batch, without waiting if it is pinned; call the result for the batch on the device."""
        if self._stream is None:
            moved = move_batch(batch, self._device)
            return lambda: moved
        self._stream.wait_stream(torch.cuda.current_stream(self._device))  # memory of earlier batches may still be read
        with torch.cuda.stream(self._stream):
            moved = move_batch(batch, self._device)
            done = torch.cuda.Event()
            done.record(self._stream)
        return partial(self._wait, moved, done, batch)

    def _wait(self, moved: Any, done: Any, source: Any) -> Any:
        """Make the current stream wait for the copy; its source in host memory exists until then."""
        torch.cuda.current_stream(self._device).wait_event(done)
        return moved


def prefetch_batches(batches: Iterator[Any], copier: DeviceCopier) -> Iterator[Any]:
    """Yield each batch on the device after the copy of the next one has started.

    An error of the loader is raised after the batches before it.
    """
    pending: Callable[[], Any] | None = None
    try:
        for batch in batches:
            pending, ready = copier.send(batch), pending
            if ready is not None:
                yield ready()
    except Exception:
        if pending is not None:
            yield pending()
        raise
    if pending is not None:
        yield pending()


class DevicePrefetcher:
    """A loader whose batches arrive on the device, copied one ahead."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        self.loader, self._device = loader, device
        self._copier: DeviceCopier | None = None

    def __iter__(self) -> Iterator[Any]:
        self._copier = self._copier or DeviceCopier(self._device)  # not earlier: the script may set its device later
        return prefetch_batches(iter(self.loader), self._copier)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # if the loader has a length


def device_prefetch(loader: Iterable[Any], device: torch.device | str | int | None = None) -> DevicePrefetcher:
    """Return a loader whose next batch is copied to the device while the step computes on the current one.

    The loader needs `pin_memory=True`, and the device memory for one more batch. Only CUDA copies asynchronously.

    Args:
        loader: A DataLoader, or any iterable that can be iterated again.
        device: The target; None is the current accelerator, or the CPU.
    """
    if device is None:  # `is_available`: a build for CUDA has a current accelerator even on a machine without a GPU
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return DevicePrefetcher(loader, torch.device("cpu" if device is None else device))
