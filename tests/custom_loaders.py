"""Loaders like those of other libraries: classes with their own loops, wrappers, functions of the settings."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
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


def make(kind: str, samples: int = SAMPLES, **arguments: Any) -> Any:
    """Make a loader of a class of this module."""
    return globals()[kind](Numbers(samples), **arguments)


class Doubling(DataLoader[Any]):
    """Processes each batch in the main process, and counts its epochs."""

    ran = 0

    def __iter__(self) -> Any:
        Doubling.ran += 1
        return (2 * batch for batch in super().__iter__())


class NotesEpochs(DataLoader[Any]):
    """Writes a line for each epoch."""

    def __init__(self, *args: Any, note: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.note = Path(note)

    def __iter__(self) -> Any:
        with self.note.open("a") as file:
            print(self.num_workers, file=file)
        return super().__iter__()


class NeverRestarting(DataLoader[Any]):
    """Keeps its workers by a sampler that never ends, as timm's and Ultralytics' loaders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sampler: Any = self.batch_sampler
        self.epoch_batches = len(sampler)
        self.batches: Any = None
        object.__setattr__(self, "batch_sampler", itertools.chain.from_iterable(itertools.repeat(sampler)))

    def __len__(self) -> int:
        return self.epoch_batches

    def __iter__(self) -> Any:
        if self.batches is None:
            self.batches = super().__iter__()
        for _ in range(len(self)):
            yield next(self.batches)


class CollatesItself(DataLoader[Any]):
    """Has its own method as collate_fn, as loaders of graphs, and another name for the dataset."""

    def __init__(self, graph: Any, scale: float, **kwargs: Any) -> None:
        self.scale = scale
        super().__init__(graph, collate_fn=self.collate, **kwargs)

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return self.scale * torch.stack(samples)


class PicksItsPrefetch(DataLoader[Any]):
    """Accepts the workers and the batch size only, and always keeps its workers."""

    def __init__(self, dataset: Any, batch_size: int = 4, num_workers: int = 0) -> None:
        ahead = {"prefetch_factor": 5, "persistent_workers": True} if num_workers else {}
        super().__init__(dataset, batch_size=batch_size, num_workers=num_workers, **ahead)  # type: ignore[arg-type]


class TakesNothing(DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, batch_size=4, num_workers=2)


class IgnoresWorkers(DataLoader[Any]):
    """Accepts any setting, and uses its own number of workers."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, **kwargs | {"num_workers": 1})


class PassesTwice(DataLoader[Any]):
    """Sets pin_memory, which `**kwargs` repeats."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, pin_memory=False, **kwargs)


class OnlyNamed(DataLoader[Any]):
    """Overrides nothing."""


class DropsEveryThird(DataLoader[Any]):
    """Drops batches in the main process."""

    def __iter__(self) -> Any:
        return (batch for number, batch in enumerate(super().__iter__()) if number % 3 != 2)


class Shard:
    """Wraps a DataLoader and pretends to be one, as accelerate's DataLoaderShard."""

    def __init__(self, dataset: Any, **arguments: Any) -> None:
        self.base_dataloader = DataLoader(dataset, **arguments)

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the loader inside is measured")

    @property  # type: ignore[misc]  # as accelerate does
    def __class__(self) -> Any:
        return type(self.base_dataloader)


class Wraps(IterableDataset[Any]):
    """A loader that is an IterableDataset, as webdataset's WebLoader."""

    def __init__(self) -> None:
        self.pipeline = [DataLoader(Numbers(), batch_size=4)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline[0])


def make_collating() -> CollatesItself:
    return CollatesItself(Numbers(), 3.0, batch_size=4)


def make_with_other_class() -> Any:
    loader = DataLoader(Numbers(), batch_size=4)
    loader.__class__ = Doubling
    return loader


def make_positional() -> Doubling:
    return Doubling(Numbers(), 4, True, num_workers=1, drop_last=True)


# Functions of the settings


class Batches:
    """A loader that is not a DataLoader, with a length."""

    def __init__(self, batch_size: int = 8, batches: int = 5) -> None:
        self._batch_size = batch_size
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(self._batch_size, 2) for _ in range(self._batches))

    def __len__(self) -> int:
        return self._batches


class LeavesThreads(Batches):
    """Starts a thread in each epoch and never ends it; fails if one of another trial still runs."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        if any(thread.name == "left" for thread in threading.enumerate()):
            raise RuntimeError("a thread of another trial still runs")
        threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
        return super().__iter__()


class ReadyBatches(IterableDataset[torch.Tensor]):
    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.zeros(self._batch_size, 2) for _ in range(5))


class Restarting:
    """An iterator with a length, which restarts by itself, as Lightning's CombinedLoader."""

    made = 0

    def __init__(self, batch_size: int = 10) -> None:
        Restarting.made += 1
        self._loader = DataLoader(Numbers(), batch_size=batch_size)
        self._iterator: Iterator[torch.Tensor] = iter(())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._iterator = iter(self._loader)
        return self

    def __next__(self) -> torch.Tensor:
        return next(self._iterator)


def make_of_settings(
    batch_size: int = 6, num_workers: int = 0, prefetch_factor: int | None = None, samples: int = SAMPLES
) -> Any:
    return Doubling(
        Numbers(samples), batch_size=batch_size, num_workers=num_workers, prefetch_factor=prefetch_factor, shuffle=True
    )


def make_without_defaults(batch_size: int, num_workers: int, prefetch_factor: int, persistent_workers: bool) -> Any:
    settings: dict[str, Any] = {"prefetch_factor": prefetch_factor, "persistent_workers": persistent_workers}
    return DataLoader(Numbers(), batch_size=batch_size, num_workers=num_workers, **settings)


def make_generator(batch_size: int = 8, batches: int = 5) -> Iterator[torch.Tensor]:
    return iter(Batches(batch_size, batches))


def make_batches_of_settings(**settings: Any) -> Batches:
    return Batches(settings.get("batch_size", 12), 3)


def seed_worker(worker_id: int) -> None:
    """Stands for what a function passes to its loader itself."""


def make_with_own_init(**settings: Any) -> Any:
    return DataLoader(Numbers(), worker_init_fn=seed_worker, **{"batch_size": 4} | settings)


def make_of_ready_batches(batch_size: int = 8, num_workers: int = 0) -> Any:
    return DataLoader(ReadyBatches(batch_size), batch_size=None, num_workers=num_workers)


def make_nothing() -> int:
    return 7


def make_fixed() -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=4)


def make_ignoring_settings(batch_size: int = 8, num_workers: int = 0) -> Any:
    return DataLoader(Numbers(), batch_size=4)


def make_with_limits(
    num_workers: int = 0, prefetch_factor: int | None = None, least: int = 0, most: int = 99
) -> DataLoader[torch.Tensor]:
    workers = min(max(num_workers, least), most)
    return DataLoader(Numbers(), batch_size=10, num_workers=workers, prefetch_factor=prefetch_factor)


# Several loaders or datasets

DATASETS = {"train": Numbers(), "val": Numbers(20)}
ONE_LIST = [(torch.zeros(2), {1, 2}) for _ in range(4)]


def make_several() -> Any:
    return {"val": DataLoader(Numbers(20)), "train": Doubling(Numbers(), batch_size=4, shuffle=True), "classes": 3}


def make_pair() -> Any:
    return DataLoader(Numbers(), batch_size=4), DataLoader(Numbers(20), batch_size=5), "their names"


def make_several_of_settings(batch_size: int = 8, num_workers: int = 0) -> Any:
    train = Doubling(Numbers(), batch_size=batch_size, num_workers=num_workers)
    return {"train": train, "val": Batches(batch_size, 3)}


class ThreadedStream(IterableDataset[torch.Tensor]):
    """Prefetches in a thread; workers forked later wait for it forever, as with MosaicML's datasets."""

    read_by: int | None = None  # the process that read it, as its forks see

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
