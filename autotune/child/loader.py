"""A DataLoader, or one of the user's own class, whose epochs can be ended early.

Closing its sampler ends an epoch the natural way: nothing more is handed out, and what is under way arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

from torch.utils.data import DataLoader

from autotune.child.stopping import align_to_workers


class StoppableSampler:
    """Stands between the sampler, or batch sampler, and the loader; counts what passes and can be closed."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
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
        for index in self.source:
            if self.batches == self._max_batches:
                self.closed = True
                return
            if self.batches + 1 == self._max_batches and self._last_batch_samples is not None:
                index = index[: self._last_batch_samples]  # noqa: PLW2901  # what is handed out instead
            self._sizes.append(_count_indices(index))
            self._last = index
            yield index

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]  # as DataLoader itself asks its sampler


def _count_indices(index: Any) -> int:
    """Count the samples that a sampler asks for at once; a batch of indices may be any sequence, array or tensor."""
    if isinstance(index, str | bytes | Mapping):
        return 1
    try:
        return len(index)
    except TypeError:  # a number, also as an array or tensor without dimensions
        return 1


class StoppableDataLoader(DataLoader[Any]):
    """A DataLoader whose epochs can be ended early without leaving batches behind.

    Attributes:
        user_class: What it is beside that.
        ends_with_sampler: Whether its epochs end when its sampler has no more; else they can only be left.
        delivers_as_sampled: Whether each batch that is handed out arrives, and as it was.
    """

    user_class: ClassVar[type[DataLoader[Any]]] = DataLoader
    ends_with_sampler = True
    delivers_as_sampled = True

    @property
    def index_source(self) -> StoppableSampler:
        """Where this loader takes its indices from."""
        behind = super()._index_sampler
        source: StoppableSampler | None = self.__dict__.get("_index_source")
        if source is None or source.source is not behind:  # the user's class may put another sampler into its place
            source = self.__dict__["_index_source"] = StoppableSampler(behind)
        return source

    def open(self, max_batches: int | None = None, last_batch_samples: int | None = None) -> None:
        """Make ready for an epoch that ends after so many batches, if any, where it can be ended."""
        if self.ends_with_sampler:
            self.index_source.open(max_batches, last_batch_samples)

    def close(self, epoch_batches: int | None) -> None:
        """End the epoch soon, with as many batches in the workers' last round as a whole epoch has there, if known.

        A round that is not full takes as long as a full one; ending on one would make the epoch look slower. And its
        last batch is cut as short as that of a whole epoch, where the sampler was told so, and takes what that takes.
        """
        if self.ends_with_sampler:
            source = self.index_source
            source.close_after(align_to_workers(source.min_batches, self.num_workers, epoch_batches))

    @property
    def _index_sampler(self) -> StoppableSampler:  # the one place where torch's iterators take their indices from
        return self.index_source

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Travel to a worker as the user's own class, one of whose methods may be what collates there."""
        parts: Any = super().__reduce_ex__(protocol)
        return (object.__new__, (self.user_class,), *parts[2:])


@cache
def _make_class(cls: Any) -> Any:
    return type(cls.__name__, (StoppableDataLoader, cls), {"__module__": cls.__module__, "user_class": cls})


def make_stoppable(cls: type[DataLoader[Any]]) -> type[StoppableDataLoader]:
    """Give the class whose loaders are those of `cls`, and can be ended early; each is made once."""
    if issubclass(cls, StoppableDataLoader):
        return cls
    found: type[StoppableDataLoader] = StoppableDataLoader if cls is DataLoader else _make_class(cls)  # type: ignore[arg-type]  # a class has a hash
    return found
