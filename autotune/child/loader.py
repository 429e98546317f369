"""Builds the loader of a configuration, whose epochs end early when its sampler closes: batches in flight arrive."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch.multiprocessing import set_sharing_strategy
from torch.utils.data import DataLoader, IterableDataset

from autotune.child.errors import set_up_worker
from autotune.child.stopping_rule import align_to_workers
from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.loaders import make_worker_init
from autotune.system.software import read_start_method_in_force

if TYPE_CHECKING:
    from autotune.child.workload import LoadedWorkload


class StoppableSampler:
    """Wraps a sampler or batch sampler; counts the indices that it returns, and can be closed."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self.open()

    def open(self, max_batches: int | None = None, last_batch_samples: int | None = None) -> None:
        """Start an epoch that ends after `max_batches`, the last of which has `last_batch_samples`."""
        self.closed = False
        self._sizes: list[int] = []
        self._max_batches = max_batches
        self._last_batch_samples = last_batch_samples

    @property
    def batches(self) -> int:
        """Batches requested so far."""
        return len(self._sizes)

    def count_samples(self, batches: int) -> int:
        """Count the samples of the first requested batches."""
        return sum(self._sizes[:batches])

    def close(self, workers: int, epoch_batches: int | None) -> None:
        """End the epoch with the workers' round, after one more batch if the last one is to be shortened."""
        batches = self.batches + (self._last_batch_samples is not None)
        self._max_batches = align_to_workers(batches, workers, epoch_batches)

    def __iter__(self) -> Iterator[Any]:
        for index in self.source:
            if self.batches == self._max_batches:
                self.closed = True
                return
            if self.batches + 1 == self._max_batches and self._last_batch_samples is not None:
                index = index[: self._last_batch_samples]  # noqa: PLW2901  # the shortened batch
            self._sizes.append(_count_indices(index))
            yield index

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # as DataLoader itself asks its sampler


def _count_indices(index: Any) -> int:
    try:
        return 1 if isinstance(index, str | bytes | Mapping) else len(index)
    except TypeError:  # a number, also as an array or tensor without dimensions
        return 1


class StoppableDataLoader(DataLoader[Any]):
    """A DataLoader whose epochs can be ended early without leaving batches behind."""

    user_class: ClassVar[type[DataLoader[Any]]] = DataLoader  # that it derives from
    ends_with_sampler = True  # otherwise its epochs can only be abandoned
    delivers_as_sampled = True  # each batch that the sampler requests arrives unchanged

    @property
    def index_source(self) -> StoppableSampler:
        """The sampler of indices, which can be closed."""
        behind = super()._index_sampler
        source: StoppableSampler | None = self.__dict__.get("_index_source")
        if source is None or source.source is not behind:  # the user's class may replace its sampler
            source = self.__dict__["_index_source"] = StoppableSampler(behind)
        return source

    _index_sampler = index_source  # the only source of indices of torch's iterators

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the user's own class, whose method may be the `collate_fn` of a worker."""
        parts: Any = super().__reduce_ex__(protocol)
        return (object.__new__, (self.user_class,), *parts[2:])


@cache
def make_stoppable(cls: Any) -> Any:
    """Return the subclass of a class of loaders whose epochs can be ended early; each is made once."""
    if cls is DataLoader or issubclass(cls, StoppableDataLoader):
        return StoppableDataLoader if cls is DataLoader else cls
    return type(cls.__name__, (StoppableDataLoader, cls), {"__module__": cls.__module__, "user_class": cls})


class IterableLoader:
    """A loader of another library, or an iterator, which is made again for each epoch.

    An iterator with a length restarts, as Lightning's CombinedLoader does. Epochs can be abandoned, not ended early;
    samples are counted as they arrive.
    """

    ends_with_sampler = delivers_as_sampled = drop_last = False
    num_workers = 0

    def __init__(self, make: Callable[[], Any], batches: Any, batch_size: int | None) -> None:
        self._make, self._is_new = make, True
        self.batches, self.batch_size, self.index_source = batches, batch_size, StoppableSampler(())

    def __iter__(self) -> Iterator[Any]:
        if not self._is_new and isinstance(self.batches, Iterator) and not hasattr(type(self.batches), "__len__"):
            self.batches = self._make()
        self._is_new = False
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


MeasuredLoader = StoppableDataLoader | IterableLoader


def build_loader(workload: LoadedWorkload, config: LoaderConfig) -> MeasuredLoader:
    """Build the loader of a configuration and set its sharing strategy; workers start with the first epoch."""
    parts, settings, workers = workload.parts, config.loader_kwargs(), config.dataloader.num_workers
    set_sharing_strategy(config.process.sharing_strategy)
    method = config.process.multiprocessing_context or read_start_method_in_force()
    if workers and method == "forkserver":
        start_fork_server()
    are_forked = method == "fork"
    init = make_worker_init(config.process, parts.worker_init_fn, are_forked=are_forked)
    init = init if are_forked else partial(set_up_worker, init)
    if workers and (workload.own is None or init is not parts.worker_init_fn):
        settings["worker_init_fn"] = init
    if workload.own is not None:
        return workload.own.make(settings)
    settings |= {name: getattr(parts, name) for name in ("sampler", "batch_sampler", "collate_fn", "generator")}
    settings |= {"timeout": parts.timeout} if workers else {}
    if parts.batch_sampler is None:
        settings |= {"drop_last": parts.drop_last} if parts.batched else {"batch_size": None}
        if parts.sampler is None and not isinstance(parts.dataset, IterableDataset):
            settings["shuffle"] = parts.shuffle is not False
    return StoppableDataLoader(parts.dataset, **settings)


@cache
def start_fork_server() -> None:
    """Start the process that forks workers, and wait until it has imported its modules: training does this once."""
    first = multiprocessing.get_context("forkserver").Process(target=gc.collect)  # any function
    first.start()
    first.join()


def is_forking(start_method: str | None) -> bool:
    """Return whether workers are forked with this start method; None is that of this process."""
    return (start_method or read_start_method_in_force()) == "fork"


def build_plain_loader(
    workload: LoadedWorkload, batch_size: int | None, workers: int = 0, prefetch_factor: int = 2
) -> MeasuredLoader:
    """Build a loader with the workload's own batches and start method, if it has any."""
    size = None if workload.batching == "user" else workload.fixed.get("batch_size", batch_size)
    extra = {"num_workers": workers, "prefetch_factor": prefetch_factor} if workers else {}
    process = ProcessSettings(multiprocessing_context=workload.parts.multiprocessing_context)
    return build_loader(
        workload, LoaderConfig(dataloader=DataLoaderSettings(batch_size=size, **extra), process=process)
    )


def read_length(one: Any) -> int | None:
    """Return the length of a loader, in batches, or of a sampler or dataset, in samples; None if it has none."""
    try:
        return len(one)
    except Exception:  # a missing length is reported by many exceptions
        return None


def count_epoch_samples(loader: MeasuredLoader, workload: LoadedWorkload) -> int | None:
    """Count the samples of a whole epoch; None if the dataset has no length, or the user's code makes the batches."""
    samples, has_own_length = workload.expected_samples, type(loader).__len__ is not DataLoader.__len__
    if samples is None or loader.batch_size is None or workload.batching == "user" or has_own_length:
        return None
    return samples - samples % loader.batch_size if loader.drop_last else samples


def count_last_samples(samples: int | None, loader: MeasuredLoader, workload: LoadedWorkload) -> int | None:
    """Return the samples of a shorter last batch, of an epoch of so many samples; None if there is none, or unknown."""
    is_divided = workload.kind == "map" and loader.delivers_as_sampled and workload.batching != "user"
    return (samples or 0) % (loader.batch_size or 1) or None if is_divided else None
