"""Torchdata's loaders, and one without any library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.workloads.libraries.made_once import BATCH, SAMPLES, USUAL, Jpegs, decode, find_jpeg


def stateful(**settings: Any) -> Any:
    """Torchdata's loader that can be stopped in the middle of an epoch and resumed."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Jpegs(), **USUAL | settings)


def torchdata_nodes(batch_size: int = BATCH, num_workers: int = 1, prefetch_factor: int | None = 2) -> Any:
    """Torchdata's nodes, with threads instead of processes."""
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper, Prefetcher

    node = Batcher(IterableWrapper(range(SAMPLES)), batch_size=batch_size)
    node = ParallelMapper(node, _load_batch, num_workers=max(1, num_workers), method="thread")
    return Loader(Prefetcher(node, prefetch_factor=prefetch_factor or 1))


def hand_written(batch_size: int = BATCH) -> Iterator[torch.Tensor]:
    """A generator without workers: there is nothing to set but the batch size."""
    order = torch.randperm(SAMPLES).tolist()
    return (_load_batch(order[start : start + batch_size]) for start in range(0, SAMPLES, batch_size))


def _load_batch(indices: list[int]) -> torch.Tensor:
    return torch.stack([decode(find_jpeg(index)) for index in indices])
