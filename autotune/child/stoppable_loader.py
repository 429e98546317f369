"""The DataLoader of one configuration, as training code would build it, whose epochs can be ended early.

Closing its sampler ends an epoch the natural way: nothing more is handed out, and what is under way arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader

from autotune.child.stopping import align_to_workers
from autotune.child.workload_loading import LoadedWorkload
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.worker_init import make_worker_init


class StoppableSampler:
    """Stands between the sampler, or batch sampler, and the loader; counts what passes and can be closed."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._source = source
        self.open()

    def open(self, max_batches: int | None = None, last_batch_samples: int | None = None) -> None:
        """Make ready for an epoch that closes after so many batches, if any, and cuts the last of them so short."""
        self.closed = False
        self._sizes: list[int] = []
        self._last: Any = ()
        self._max_batches = max_batches
        self._last_batch_samples = last_batch_samples

    @property
    def batches(self) -> int:
        """Batches handed out so far."""
        return len(self._sizes)

    def count_samples(self, batches: int) -> int:
        """Count the samples of the first so many batches handed out, whatever shape they arrive in."""
        return sum(self._sizes[:batches])

    @property
    def min_batches(self) -> int:
        """The fewest batches that it can close after: one more than now, if the last one is to be cut."""
        return self.batches + (self._last_batch_samples is not None)

    def was_last(self, index: int) -> bool:
        """Tell whether a sample is one of the batch that was handed out last."""
        return index in self._last if isinstance(self._last, list | tuple) else bool(index == self._last)

    def close_after(self, batches: int) -> None:
        """Hand out nothing more in this epoch once so many batches have passed, or as many as have by now."""
        self._max_batches = max(batches, self.batches)

    def __iter__(self) -> Iterator[Any]:
        for index in self._source:
            if self.batches == self._max_batches:
                self.closed = True
                return
            if self.batches + 1 == self._max_batches and self._last_batch_samples is not None:
                index = index[: self._last_batch_samples]  # noqa: PLW2901  # what is handed out instead
            self._sizes.append(_count_indices(index))
            self._last = index
            yield index

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # as DataLoader itself asks its sampler


def _count_indices(index: Any) -> int:
    """Count the samples that a sampler asks for at once; a batch of indices may be any sequence, array or tensor."""
    if isinstance(index, str | bytes | Mapping):
        return 1
    try:
        return len(index)
    except TypeError:  # a number, also as an array or tensor without dimensions
        return 1


class StoppableDataLoader(DataLoader[Any]):
    """A DataLoader whose epochs can be ended early without leaving batches behind."""

    @property
    def index_source(self) -> StoppableSampler:
        """Where this loader takes its indices from."""
        source: StoppableSampler | None = self.__dict__.get("_index_source")
        if source is None:
            source = self.__dict__["_index_source"] = StoppableSampler(super()._index_sampler)
        return source

    def close(self, epoch_batches: int | None) -> None:
        """End the epoch soon, with as many batches in the workers' last round as a whole epoch has there, if known.

        A round that is not full takes as long as a full one; ending on one would make the epoch look slower. And its
        last batch is cut as short as that of a whole epoch, where the sampler was told so, and takes what that takes.
        """
        source = self.index_source
        source.close_after(align_to_workers(source.min_batches, self.num_workers, epoch_batches))

    @property
    def _index_sampler(self) -> StoppableSampler:  # the one place where torch's iterators take their indices from
        return self.index_source


def build_loader(workload: LoadedWorkload, config: LoaderConfig) -> StoppableDataLoader:
    """Build the loader of one configuration, whose sharing strategy is put in force; no worker is started yet."""
    parts = workload.parts
    set_sharing_strategy(config.process.sharing_strategy)
    kwargs = config.loader_kwargs() | {
        "dataset": parts.dataset,
        "collate_fn": parts.collate_fn,
        "worker_init_fn": parts.worker_init_fn,
        "generator": parts.generator,
        "timeout": parts.timeout if config.dataloader.num_workers else 0,
    }
    if config.dataloader.num_workers:
        are_forked = config.process.multiprocessing_context in (None, "fork")
        kwargs["worker_init_fn"] = make_worker_init(config.process, parts.worker_init_fn, are_forked=are_forked)
    return StoppableDataLoader(**kwargs, **_order_kwargs(workload))


def build_plain_loader(
    workload: LoadedWorkload,
    batch_size: int | None,
    workers: int = 0,
    prefetch_factor: int = 2,
    process: ProcessSettings | None = None,
) -> StoppableDataLoader:
    """Build a loader to look at a workload with, which keeps its own batches and way of starting workers, if any."""
    size = None if workload.batching == "user" else batch_size
    extra = {"num_workers": workers, "prefetch_factor": prefetch_factor} if workers else {}
    process = process or ProcessSettings(multiprocessing_context=workload.start_method)
    return build_loader(
        workload, LoaderConfig(dataloader=DataLoaderSettings(batch_size=size, **extra), process=process)
    )


def _order_kwargs(workload: LoadedWorkload) -> dict[str, Any]:
    parts = workload.parts
    if parts.batch_sampler is not None:
        return {"batch_sampler": parts.batch_sampler}
    order: dict[str, Any] = {"drop_last": parts.drop_last} if parts.batched else {"batch_size": None}
    if workload.kind == "iterable":
        return order
    if parts.sampler is not None:
        return order | {"sampler": parts.sampler}
    return order | {"shuffle": parts.shuffle is not False}


def count_epoch_batches(loader: StoppableDataLoader, workload: LoadedWorkload) -> int | None:
    """Count the batches of a whole epoch; None where neither the sampler nor the dataset tells."""
    samples = workload.promised_samples
    try:
        if workload.kind == "map":
            return len(loader.index_source)
    except TypeError:
        return None
    if samples is None or loader.batch_size is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)


def count_epoch_samples(loader: StoppableDataLoader, workload: LoadedWorkload) -> int | None:
    """Count the samples that a whole epoch delivers; None where nothing promises them, or the user's code batches."""
    samples = workload.promised_samples
    if samples is None or loader.batch_size is None or workload.batching == "user":
        return None
    return samples - samples % loader.batch_size if loader.drop_last else samples
