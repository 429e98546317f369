"""Takes ready DataLoaders apart, to make others that differ in their settings only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, get_args

from autotune.config import StartMethod
from autotune.request import Workload

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def take_apart(loader: DataLoader[Any]) -> Workload:
    """Return the parts of a loader that are not settings."""
    from torch.utils.data import IterableDataset

    iterable = isinstance(loader.dataset, IterableDataset)
    own_batches = loader.batch_size is None and loader.batch_sampler is not None
    return Workload(
        dataset=loader.dataset,
        sampler=None if iterable or own_batches else loader.sampler,
        batch_sampler=loader.batch_sampler if own_batches else None,
        batched=loader.batch_sampler is not None or loader.batch_size is not None,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        multiprocessing_context=read_start_method(loader),
    )


def read_start_method(loader: DataLoader[Any]) -> StartMethod | None:
    """Return the start method of a loader's workers; None for the default, or a context without processes."""
    method = getattr(loader.multiprocessing_context, "get_start_method", lambda: None)()
    return cast("StartMethod", method) if method in get_args(StartMethod) else None


def list_order(parts: Workload) -> dict[str, Any]:
    """Return the arguments of DataLoader that decide which samples are in which batch, except the batch size."""
    from torch.utils.data import IterableDataset

    if parts.batch_sampler is not None:
        return {"batch_sampler": parts.batch_sampler}
    order: dict[str, Any] = {"drop_last": parts.drop_last} if parts.batched else {"batch_size": None}
    if isinstance(parts.dataset, IterableDataset):
        return order
    if parts.sampler is not None:
        return order | {"sampler": parts.sampler}
    return order | {"shuffle": parts.shuffle is not False}
