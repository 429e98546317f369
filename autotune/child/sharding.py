"""Finds out how an iterable dataset shares its samples among workers, each of which may deliver all of them again."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import default_collate, get_worker_info

from autotune.child.batches import count_samples
from autotune.child.errors import shut_down_workers
from autotune.child.loader import build_plain_loader
from autotune.child.probe_storage import measure_reads
from autotune.child.probe_workers import ROUND_BATCH_SIZE, single_thread, time_worker_round
from autotune.child.workload import LoadedWorkload
from autotune.profiles.device_prefetch import find_tensors

SHARE_ATTRIBUTES: Final = ("id", "num_workers")  # of torch's WorkerInfo, which sharding code reads
COMPARED_BATCHES: Final = 4  # two of each of two workers
MIN_CENSUS_BATCHES: Final = 4  # of one worker, while another delivers none
MAX_COUNT_SECONDS: Final = 1.0  # spent on counting an epoch; longer ones are not counted


@dataclasses.dataclass(frozen=True)
class NotedCollate:
    """A `collate_fn` that writes down, batch by batch, which worker it is called in."""

    note: str
    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> Any:
        """Make a batch."""
        info = get_worker_info()
        if info is not None:
            with Path(self.note).open("a") as file:
                file.write(f"{info.id}\n")
        return self.collate(samples)


@dataclasses.dataclass(frozen=True)
class ShareWatch:
    """A `worker_init_fn` that creates the file `note` when code reads the worker's number or the number of workers."""

    note: str
    then: Callable[[int], None] | None = None

    def __call__(self, worker_id: int) -> None:
        """Watch one worker, then call the user's own function."""
        note = Path(self.note)

        def read(info: Any, name: str) -> Any:
            if name in SHARE_ATTRIBUTES:
                note.touch()
            return object.__getattribute__(info, name)

        type.__setattr__(type(get_worker_info()), "__getattribute__", read)  # in this worker process only
        if self.then is not None:
            self.then(worker_id)


def count_samples_single_process(workload: LoadedWorkload) -> None:
    """See how an iterable dataset shares its samples out to workers.

    Its samples are counted in one process, where an epoch is short enough, and what they took is kept; one worker shows
    whether it asks which one it is. All of it is noted in the workload's `sample_counts`.
    """
    workload.sample_counts.asks_which_worker = _asks_which_worker(workload)
    try:
        with single_thread():
            samples = _count_epoch(workload, workers=0)
    except Exception:  # whatever it is, the trial without workers will meet it and name it
        return
    if samples is not None:
        workload.sample_counts.samples = samples


def _asks_which_worker(workload: LoadedWorkload) -> bool:
    """Tell whether a worker, before its first batch is there, looks at its number or at how many there are."""
    if workload.own is not None:  # how its workers are set up is its own
        return True
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "asked"
        parts = dataclasses.replace(workload.parts, worker_init_fn=ShareWatch(str(note), workload.parts.worker_init_fn))
        time_worker_round(dataclasses.replace(workload, parts=parts), 1)
        return note.exists()


def _count_epoch(workload: LoadedWorkload, workers: int) -> int | None:
    """Count an epoch's samples, or until there are too many; None when it takes too long."""
    loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers)
    samples = 0
    deadline = time.perf_counter() + MAX_COUNT_SECONDS
    for batch, read in measure_reads(loader):
        delivered = count_samples(batch, loader.batch_size or 1)
        samples += delivered
        if not workers and delivered:
            workload.sample_counts.reads.append(read.share(delivered))
        if workload.sample_counts.is_multiplied(samples):
            break
        if time.perf_counter() > deadline:
            return None
    return samples


def workers_duplicate_data(workload: LoadedWorkload) -> bool:
    """Tell whether two workers of an iterable dataset were seen to deliver the same data.

    They do when they deliver twice the samples of one process and never ask which worker they are, or when their
    batches are equal one by one. What is drawn at random, and takes long, cannot be told.
    """
    counts = workload.sample_counts
    try:
        counted = _take_census(workload, workers=2) if counts.samples else None
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return False
    if (counted is not None and counts.is_exceeded(counted)) or _deliver_equal_batches(workload):
        return True
    counts.is_per_worker = counted is not None and counts.is_multiplied(counted)
    return False


def _take_census(workload: LoadedWorkload, workers: int) -> int | None:
    """Count an epoch's samples as `_count_epoch` does, and note whether some of its workers deliver nothing."""
    parts = workload.parts
    if workload.own is not None or not parts.batched:  # whose batches are made elsewhere
        return _count_epoch(workload, workers)
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "census"
        noted = NotedCollate(str(note), parts.collate_fn or default_collate)
        watched = dataclasses.replace(workload, parts=dataclasses.replace(parts, collate_fn=noted))
        samples = _count_epoch(watched, workers)
        batches = Counter(note.read_text().split() if note.exists() else [])
    is_seen = batches.total() >= MIN_CENSUS_BATCHES
    workload.sample_counts.idle_workers = workers - len(batches) if is_seen else 0
    return samples


def describe_idle_workers(workload: LoadedWorkload) -> str | None:
    """Say that a worker delivers nothing while another delivers everything, where that was seen."""
    if not workload.sample_counts.idle_workers:
        return None
    return (
        "One of two workers delivers everything, and the other nothing: the dataset has one piece (shard, file) to "
        "share out, or __iter__ gives the first worker all of them. More workers help once it has more."
    )


def describe_epochs(workload: LoadedWorkload) -> str | None:
    """Say that more workers make an epoch longer, where `workers_duplicate_data` has seen it."""
    counts = workload.sample_counts
    if not counts.is_per_worker:
        return None
    return (
        f"Each worker delivers an epoch of its own ({counts.samples} samples): with 4 workers an epoch is 4 times as "
        "long. Throughputs count samples, so they can be compared; if it is not meant, share the data out in __iter__ "
        "by get_worker_info()."
    )


def _deliver_equal_batches(workload: LoadedWorkload) -> bool:
    """Tell whether two workers deliver equal batches.

    Batches come alternately from worker 0 and 1. They are the same data when each pair is equal although
    consecutive batches of one worker differ; constant data proves nothing.
    """
    batches = []
    try:
        loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers=2)
        for batch in itertools.islice(loader, COMPARED_BATCHES):
            batches.append([tensor.cpu() for tensor in find_tensors(batch)])  # noqa: PERF401  # kept if a later one fails
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return False
    if len(batches) < COMPARED_BATCHES or not batches[0]:
        return False
    first, second, third, fourth = batches
    return _are_equal(first, second) and _are_equal(third, fourth) and not _are_equal(first, third)


def _are_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
