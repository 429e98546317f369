"""Loaders as other libraries make them: classes that iterate in their own way, wrappers, functions of the settings."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SAMPLES = 60


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(os.getpid())])


class Doubling(DataLoader[Any]):
    """Works in the main process on each batch, as a loader that filters or moves does, and notes that it ran."""

    ran = 0

    def __iter__(self) -> Any:
        Doubling.ran += 1
        return map(self._double, super().__iter__())

    @staticmethod
    def _double(batch: torch.Tensor) -> torch.Tensor:
        return 2 * batch


class RepeatSampler:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class NeverRestarting(DataLoader[Any]):
    """Keeps its workers from epoch to epoch by a sampler that never ends, as timm's and Ultralytics' loaders do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        sampler: Any = self.batch_sampler
        return len(sampler.sampler)

    def __iter__(self) -> Any:
        if self.batches is None:
            self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)


class CollatesItself(DataLoader[Any]):
    """Has a method of its own as collate_fn, as loaders of graphs do, and takes the data under another name."""

    def __init__(self, graph: Any, scale: float, **kwargs: Any) -> None:
        self.scale = scale
        super().__init__(graph, collate_fn=self.collate, **kwargs)

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return self.scale * torch.stack(samples)


class PicksItsPrefetch(DataLoader[Any]):
    """Lets its users choose workers and batch size only, and keeps its workers whatever they say."""

    def __init__(self, dataset: Any, batch_size: int = 4, num_workers: int = 0) -> None:
        ahead = {"prefetch_factor": 5, "persistent_workers": True} if num_workers else {}
        super().__init__(dataset, batch_size=batch_size, num_workers=num_workers, **ahead)  # type: ignore[arg-type]


class TakesNothing(DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, batch_size=4, num_workers=2)


class OnlyNamed(DataLoader[Any]):
    """Iterates and is made as any DataLoader."""

    def describe(self) -> str:
        return "mine"


class HasBatchSize(Numbers):
    """Shares itself out by a batch size of its own, as streamed datasets do."""

    batch_size = 12


class Wraps(IterableDataset[Any]):
    """Calls itself a dataset and is a loader, as webdataset's WebLoader does."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(Numbers(), batch_size=4)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline[0])


class Batches:
    """A loader of no library of torch's; with a length."""

    def __init__(self, batch_size: int, batches: int) -> None:
        self._batch_size = batch_size
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(self._batch_size, 2) for _ in range(self._batches))

    def __len__(self) -> int:
        return self._batches


class KnownToItsIterator(DataLoader[Any]):
    """Is held by its iterator, which it holds with persistent workers, as litdata's loader."""

    def _get_iterator(self) -> Any:
        iterator: Any = super()._get_iterator()
        iterator.loader = self
        return iterator


def make_known() -> KnownToItsIterator:
    return KnownToItsIterator(Numbers(), batch_size=4)


def make_doubling() -> Doubling:
    return Doubling(Numbers(), 4, True, num_workers=1, drop_last=True)


def stack_twice(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([*samples, *samples])


def start_worker(number: int) -> None:
    torch.manual_seed(number)


def make_changed() -> Doubling:
    """Change a loader after it was made, as training scripts do."""
    loader = Doubling(Numbers(), batch_size=4, num_workers=1)
    loader.collate_fn = stack_twice
    loader.timeout = 7.0
    loader.worker_init_fn = start_worker
    return loader


def make_timed() -> Doubling:
    return Doubling(Numbers(), batch_size=4, num_workers=1, timeout=7.0)


def make_changed_collating() -> CollatesItself:
    loader = CollatesItself(Numbers(), 3.0, batch_size=4)
    loader.scale = 5.0
    return loader


def make_never_restarting(samples: int = SAMPLES) -> NeverRestarting:
    return NeverRestarting(Numbers(samples), batch_size=4, shuffle=True)


def make_collating() -> CollatesItself:
    return CollatesItself(Numbers(), 3.0, batch_size=4)


def make_picky() -> PicksItsPrefetch:
    return PicksItsPrefetch(Numbers(), num_workers=1)


def make_unsettable() -> TakesNothing:
    return TakesNothing(Numbers())


def make_named() -> OnlyNamed:
    return OnlyNamed(Numbers(), batch_size=4)


def make_by_hand() -> Any:
    loader = DataLoader(Numbers(), batch_size=4)
    loader.__class__ = Doubling
    return loader


def make_wrapped() -> Wraps:
    return Wraps()


def make_of_settings(
    batch_size: int = 6, num_workers: int = 0, prefetch_factor: int | None = None, samples: int = SAMPLES
) -> Any:
    return Doubling(
        Numbers(samples), batch_size=batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor, shuffle=True
    )


def make_batches(batch_size: int = 8, batches: int = 5) -> Batches:
    return Batches(batch_size, batches)


def make_generator(batch_size: int = 8) -> Iterator[torch.Tensor]:
    return (torch.zeros(batch_size, 2) for _ in range(5))


def make_endless(batch_size: int = 8) -> Iterator[torch.Tensor]:
    while True:
        yield torch.zeros(batch_size, 2)


def make_nothing() -> int:
    return 7


def make_deaf(batch_size: int = 8, num_workers: int = 0) -> Any:
    return DataLoader(Numbers(), batch_size=4)


class LeavesThreads(Batches):
    """Starts a thread for each epoch and never ends it; fails where one of another trial still runs."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        if any(thread.name == "left" for thread in threading.enumerate()):
            raise RuntimeError("a thread of another trial still runs")
        threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
        return super().__iter__()


def make_leaving_threads(batch_size: int = 8) -> LeavesThreads:
    return LeavesThreads(batch_size, 5)


class ReadsAhead(DataLoader[Any]):
    """Takes batches from the sampler before they are asked for, as MONAI's loader with a thread does."""

    def __iter__(self) -> Any:
        ahead = deque(itertools.islice(batches := super().__iter__(), 3))
        while ahead:
            yield ahead.popleft()
            ahead.extend(itertools.islice(batches, 1))


def make_reading_ahead() -> ReadsAhead:
    return ReadsAhead(Numbers(2000), batch_size=4)


class DropsEveryThird(DataLoader[Any]):
    """Leaves batches out in the main process."""

    def __iter__(self) -> Any:
        return (batch for number, batch in enumerate(super().__iter__()) if number % 3 != 2)


def make_dropping() -> DropsEveryThird:
    return DropsEveryThird(Numbers(), batch_size=4)


def make_without_defaults(batch_size: int, num_workers: int, prefetch_factor: int, persistent_workers: bool) -> Any:
    return DataLoader(
        Numbers(),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )


class ReadyBatches(IterableDataset[torch.Tensor]):
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(self._batch_size, 2) for _ in range(5))


def make_of_ready_batches(batch_size: int = 8, num_workers: int = 0) -> Any:
    return DataLoader(ReadyBatches(batch_size), batch_size=None, num_workers=num_workers)


def make_several() -> Any:
    return {"val": DataLoader(Numbers(20)), "train": Doubling(Numbers(), batch_size=4, shuffle=True), "classes": 3}


def make_pair() -> Any:
    return DataLoader(Numbers(), batch_size=4), DataLoader(Numbers(20), batch_size=5), "their names"


def make_datasets() -> Any:
    return {"train": Numbers(), "val": Numbers(20)}


def make_nested() -> Any:
    return {"train": {"left": Numbers(), "right": Numbers()}, "val": Numbers()}


def make_several_of_settings(batch_size: int = 8, num_workers: int = 0) -> Any:
    train = Doubling(Numbers(), batch_size=batch_size, num_workers=num_workers)
    return {"train": train, "val": Batches(batch_size, 3)}


def make_samples() -> Any:
    return [(torch.zeros(2), {1, 2}) for _ in range(4)]


# Factories with arguments of their own


def make_repeated(repeats: int = 2) -> Dataset[torch.Tensor]:
    if repeats < 1:
        raise ValueError("repeats must be positive")
    return Numbers(SAMPLES * repeats)


def load_repeated(
    batch_size: int = 4, num_workers: int = 0, prefetch_factor: int | None = None, repeats: int = 2
) -> DataLoader[torch.Tensor]:
    return DataLoader(
        make_repeated(repeats), batch_size=batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor
    )


def make_any(level: Any = 2) -> Dataset[torch.Tensor]:
    return Numbers()


def make_from_anything(**arguments: Any) -> Dataset[torch.Tensor]:
    return make_repeated(**arguments)


NUMBERS = Numbers()


class ThreadedStream(IterableDataset[torch.Tensor]):
    """Reads ahead in a thread, for which workers that are forked later wait for ever, as MosaicML's datasets do."""

    read_by: int | None = None  # the process that read it, and each that was forked from it since

    def __iter__(self) -> Iterator[torch.Tensor]:
        if ThreadedStream.read_by not in (None, os.getpid()):
            time.sleep(1e6)
        if get_worker_info() is None:
            ThreadedStream.read_by = os.getpid()
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        share = get_worker_info()
        first, step = (0, 1) if share is None else (share.id, share.num_workers)
        return (torch.tensor([float(index)]) for index in range(first, SAMPLES, step))


def make_threaded_stream() -> DataLoader[torch.Tensor]:
    return DataLoader(ThreadedStream(), batch_size=4)


class BeginsAnew:
    """An iterator over several loaders at once that begins anew by itself, as Lightning's CombinedLoader does."""

    made = 0

    def __init__(self, loader: DataLoader[torch.Tensor]) -> None:
        BeginsAnew.made += 1
        self._loader = loader
        self._iterator: Iterator[torch.Tensor] = iter(())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._iterator = iter(self._loader)
        return self

    def __next__(self) -> torch.Tensor:
        return next(self._iterator)


def make_begins_anew(batch_size: int = 10) -> BeginsAnew:
    return BeginsAnew(DataLoader(Numbers(), batch_size=batch_size))


def make_capped(num_workers: int = 0, prefetch_factor: int | None = None) -> DataLoader[torch.Tensor]:
    workers = min(num_workers, 2)
    return DataLoader(Numbers(), batch_size=10, num_workers=workers, prefetch_factor=prefetch_factor)


def make_stubborn(num_workers: int = 0) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=10, num_workers=max(2, num_workers))
