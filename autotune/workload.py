"""A data pipeline to tune: the arguments of its DataLoader that are not searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A dataset with further arguments of its DataLoader, which a dataset factory may return.

    Attributes:
        dataset: A map-style or iterable dataset.
        shuffle: Whether a map-style dataset is shuffled; None shuffles it.
        sampler: Order of samples; excludes `shuffle`.
        batch_sampler: Returns batches of indices; the batch size is then not tuned.
        batched: False returns single samples, as `DataLoader(batch_size=None)` does.
        collate_fn: Makes a batch of samples; None uses PyTorch's default.
        worker_init_fn: Called in each worker with its number.
        generator: Source of randomness for the sampler and the workers' seeds.
        drop_last: Whether an incomplete last batch is dropped.
        timeout: Timeout for a batch, in seconds; 0 for no limit.
        multiprocessing_context: Start method of the workers; None uses Python's default.
    """

    dataset: Dataset[Any]
    shuffle: bool | None = None
    sampler: Sampler[Any] | Iterable[Any] | None = None
    batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None
    batched: bool = True
    collate_fn: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    generator: torch.Generator | None = None
    drop_last: bool = False
    timeout: float = 0.0
    multiprocessing_context: str | None = None


def join_title(dataset: str, split: str | None) -> str:
    """Return the name of a workload: its factory, and one of several loaders that the factory returns."""
    return dataset if split is None else f"{dataset} [{split}]"
