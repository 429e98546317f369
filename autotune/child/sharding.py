"""Watches how an iterable dataset divides its samples among workers, each of which may deliver all of them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import get_worker_info

from autotune.child.workload import LoadedWorkload

SHARD_COUNTS: Final = ("num_shards", "n_shards")  # attributes; `n_shards` in earlier versions of Hugging Face datasets
WORKER_NUMBERS: Final = ("id", "num_workers")  # attributes of torch's WorkerInfo that sharding code reads
COMPARED_BATCHES: Final = 4  # two of each of two workers

_reads_worker_info = False  # in a worker process: whether code has read its number


class WorkerBatch(NamedTuple):
    """A batch, the worker that made it, and whether code has read the worker's number by then."""

    worker: int
    reads_worker_info: bool
    batch: Any


@dataclass(frozen=True)
class RecordingCollate:
    """A `collate_fn` that returns a `WorkerBatch`."""

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> WorkerBatch:
        """Make a batch in a worker."""
        batch = self.collate(samples)
        return WorkerBatch(object.__getattribute__(get_worker_info(), "id"), _reads_worker_info, batch)


@dataclass(frozen=True)
class WatchedInit:
    """A `worker_init_fn` that records whether code reads the worker's number, and then calls the user's function.

    User code finds its own dataset in `get_worker_info()`, even if the loader has a wrapper of it.
    """

    dataset: Any
    then: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        """Set up one worker."""
        info = get_worker_info()
        object.__setattr__(info, "dataset", self.dataset)  # it is frozen
        type.__setattr__(type(info), "__getattribute__", _get_watched)  # in this worker process only
        if self.then is not None:
            self.then(worker_id)


def _get_watched(info: Any, name: str) -> Any:
    global _reads_worker_info
    _reads_worker_info |= name in WORKER_NUMBERS
    return object.__getattribute__(info, name)


def count_shards(workload: LoadedWorkload) -> int | None:
    """Return the number of shards that an iterable dataset reports; None if it does not."""
    counts = (getattr(workload.parts.dataset, name, None) for name in SHARD_COUNTS)
    return next((count for count in counts if type(count) is int and count > 0), None)


def has_equal_batches(batches: Sequence[list[torch.Tensor]]) -> bool:
    """Return whether two workers deliver equal data, from the first batches, which come from them in turn.

    Each pair must be equal although consecutive batches of one worker differ; constant data proves nothing.
    """
    if len(batches) < COMPARED_BATCHES or not batches[0]:
        return False
    first, second, third, fourth = batches[:COMPARED_BATCHES]
    return _are_equal(first, second) and _are_equal(third, fourth) and not _are_equal(first, third)


def _are_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


IDLE_WORKER: Final = (
    "One of two workers delivers everything, and the other nothing: the dataset has one shard (or file), or __iter__ "
    "assigns all of them to the first worker. More workers help only with more shards."
)


def describe_epochs(samples: int | None) -> str:
    """Return the note about a dataset that delivers an epoch of so many samples in each worker."""
    return (
        f"Each worker delivers an epoch of its own ({samples} samples): with 4 workers an epoch is 4 times as long. "
        "Throughputs count samples and stay comparable. If this is not intended, shard the data in __iter__ by "
        "get_worker_info()."
    )
