"""Counts the samples and bytes of batches of any type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.profiles.device_prefetch import find_tensors


def count_samples(batch: Any, otherwise: int) -> int:
    """Return the number of samples in a batch.

    It is the first dimension of the tensors, or the length of the first sequence. If any tensor has the expected number
    of rows, `otherwise`, that is it: the first tensor may hold something else, such as boxes.
    """
    lengths = [int(tensor.shape[0]) for tensor in find_tensors(batch) if tensor.dim()]
    if lengths:
        return otherwise if otherwise in lengths else lengths[0]
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, Sequence) and not isinstance(parts, str | bytes):
        return len(parts[0] if parts and isinstance(parts[0], list | tuple) else parts)
    return otherwise


def count_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(batch))
