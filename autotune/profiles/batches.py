"""Walks whatever a loader delivers: nested tuples, dicts, dataclasses, custom batch types."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch


def find_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor inside a batch, in a stable order."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    for part in _list_parts(batch):
        yield from find_tensors(part)


def _list_parts(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return list(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    if type(batch).__module__ != "builtins" and hasattr(batch, "__dict__"):
        return list(vars(batch).values())
    return []


def count_samples(batch: Any, otherwise: int) -> int:
    """Count the samples of a batch by its tensors' first dimension, or its first sequence, or else say `otherwise`.

    Where any of its tensors has as many as are expected, `otherwise`, that is it: the first one may hold something else
    of them, such as boxes.
    """
    lengths = (int(tensor.shape[0]) for tensor in find_tensors(batch) if tensor.dim())
    if (first := next(lengths, None)) is not None:
        return otherwise if first == otherwise or otherwise in lengths else first
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, Sequence) and not isinstance(parts, str | bytes):
        inner = parts[0] if parts and isinstance(parts[0], list | tuple) else parts
        return len(inner)
    return otherwise


def count_bytes(batch: Any) -> int:
    """Count the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(batch))


def move_batch(batch: Any, device: torch.device) -> Any:
    """Copy a batch to a device, asynchronously where its memory is pinned and the device is CUDA's.

    A custom type is moved by its own `to(device)` where it has one; what cannot be moved stays as it is.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")
    if hasattr(batch, "to"):
        return _move_custom(batch, device)
    if isinstance(batch, Mapping):
        return _replace_values(batch, {key: move_batch(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_batch(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: move_batch(getattr(batch, field.name), device) for field in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **fields)
    return batch


def _move_custom(batch: Any, device: torch.device) -> Any:
    if device.type != "cuda":
        return batch.to(device)
    try:
        return batch.to(device, non_blocking=True)
    except TypeError:  # its own `to` takes the device alone
        return batch.to(device)


def _replace_values(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """Give a mapping of the same type, and with the same attributes, as torch does when it pins one."""
    if type(batch) is dict or not isinstance(batch, MutableMapping):
        return values
    moved = copy.copy(batch)
    moved.update(values)
    return moved
