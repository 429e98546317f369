"""What is tuned: the parts of a data pipeline that stay as they are meanwhile, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a dataset factory may return when a dataset alone does not say enough.

    Attributes:
        dataset: A map-style or iterable dataset.
        shuffle: Whether a map-style dataset is shuffled; None does, as training does.
        sampler: Order of samples; excludes `shuffle`.
        batch_sampler: Makes whole batches of indices; the batch size is then not tuned.
        batched: False hands samples over one by one, as `DataLoader(batch_size=None)` does.
        collate_fn: Makes a batch of samples; None is torch's own.
        worker_init_fn: Called in each worker with its number.
        generator: Source of randomness for the sampler and the workers' seeds.
        drop_last: Whether an incomplete last batch is dropped.
        timeout: Seconds a worker may take for a batch; 0 for no limit.
        multiprocessing_context: Start method of the workers; None is the interpreter's default.
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
    """Name what is tuned: the factory, and which of several it is that the factory returns."""
    return dataset if split is None else f"{dataset} [{split}]"
