"""Checks of the data that workers return, which no throughput shows.

Two workers are started once: they must return the same samples as another process, and divide an iterable dataset
between them. Meanwhile their threads and memory are measured. An error ends the checks; the trials report it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import default_collate, default_convert, get_worker_info

from autotune.child.copied_memory import MIN_HEAP_BYTES, describe_growth, read_copied_bytes
from autotune.child.errors import shut_down_workers
from autotune.child.loader import MeasuredLoader, build_plain_loader
from autotune.child.sample_checks import DUPLICATED_RATIO, count_samples
from autotune.child.sample_reader import HashedDataset
from autotune.child.trial import list_workers
from autotune.child.workload import LoadedWorkload
from autotune.profiles.device_prefetch import find_tensors
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.system.processes import measure_pss, read_smaps, read_thread_seconds

MAX_SECONDS: Final = 1.0  # after the first batch
BATCH: Final = 2  # samples: with small batches workers take turns often
MAX_MEMORY_BATCH: Final = 32  # samples, when nothing but memory is watched
MEMORY_BATCH_SECONDS: Final = 0.05
MIN_DIFFERING: Final = 4  # samples; fewer may be rare draws from a generator of the dataset's own
USAGE_BATCHES: Final = (2, 6)  # between them a worker's threads are measured; libraries start theirs before
MIN_BATCHES: Final = 8
MIN_THREAD_SECONDS: Final = 5e-3  # of CPU time
MEMORY_INTERVAL_SECONDS: Final = 0.15  # in the first one, a worker copies what any worker copies
WORKER_NUMBERS: Final = ("id", "num_workers")  # attributes of torch's WorkerInfo that sharding code reads
COMPARED_BATCHES: Final = 4  # two of each of two workers
_read_numbers: Final[set[str]] = set()  # in a worker process: those that code has read

IDLE_WORKER: Final = (
    "One of two workers delivers everything, and the other nothing: the dataset has one shard (or file), or __iter__ "
    "assigns all of them to the first worker. More workers help only with more shards."
)
OWN_EPOCHS: Final = (
    "Each worker delivers an epoch of its own ({} samples): with 4 workers an epoch is 4 times as long. Throughputs "
    "count samples and stay comparable. If this is not intended, shard the data in __iter__ by get_worker_info()."
)


class WorkerBatch(NamedTuple):
    """A batch and the worker that made it."""

    worker: int
    reads_worker_info: bool  # whether code has read the worker's number so far
    collate_seconds: float
    batch: Any


@dataclass(frozen=True)
class RecordingCollate:
    """A `collate_fn` that returns a `WorkerBatch`."""

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> WorkerBatch:
        """Make a batch in a worker."""
        worker, started = object.__getattribute__(get_worker_info(), "id"), time.perf_counter()
        batch = self.collate(samples)
        return WorkerBatch(worker, bool(_read_numbers), time.perf_counter() - started, batch)


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
        type.__setattr__(type(info), "__getattribute__", _read_attribute)  # in this worker process only
        if self.then is not None:
            self.then(worker_id)


def _read_attribute(info: Any, name: str) -> Any:
    _read_numbers.update({name}.intersection(WORKER_NUMBERS))
    return object.__getattribute__(info, name)


def has_equal_batches(batches: Sequence[list[torch.Tensor]]) -> bool:
    """Return whether two workers deliver equal data, from the first batches, which come from them in turn.

    Each pair must be equal although consecutive batches of one worker differ; constant data proves nothing.
    """
    if len(batches) < COMPARED_BATCHES or not batches[0]:
        return False

    def are_equal(some: int, other: int) -> bool:
        pairs = zip(batches[some], batches[other], strict=False)
        return len(batches[some]) == len(batches[other]) and all(torch.equal(*pair) for pair in pairs)

    return are_equal(0, 1) and are_equal(2, 3) and not are_equal(0, 2)


@dataclass(slots=True)
class Observation:
    """What two workers did."""

    reads_worker_info: bool  # whether code read the number of its worker
    samples: int = 0
    digests: list[str] = field(default_factory=list)  # of a map-style dataset
    first_batches: list[list[torch.Tensor]] = field(default_factory=list)
    delivered: Counter[int] = field(default_factory=Counter)  # batches of an iterable dataset by worker
    copied: list[tuple[int, int]] = field(default_factory=list)  # samples so far, and bytes copied by then
    threads_cpu: float = 0.0  # CPU time of a worker's other threads over that of the one that loads
    memory_bytes: int = 0  # of a worker

    def note(self, batch: Any, batch_size: int) -> None:
        """Record a batch, of this size if it has any."""
        if isinstance(batch, WorkerBatch):
            self.delivered[batch.worker] += 1
            self.reads_worker_info |= batch.reads_worker_info
            batch = batch.batch
        self.samples += count_samples(batch, batch_size)
        if len(self.first_batches) < COMPARED_BATCHES:
            self.first_batches.append([tensor.cpu() for tensor in find_tensors(batch)])


def check_workers(workload: LoadedWorkload, profile: WorkloadProfile, digests: Mapping[int, str]) -> WorkloadProfile:
    """Watch two workers for a moment, and return the profile with what they did; `digests` are of another process."""
    seen = Observation(reads_worker_info=workload.own is not None)  # a custom loader sets up workers its own way
    try:
        _watch_workers(workload, profile, digests, seen)
    except Exception as error:
        shut_down_workers(error)
    differing = [index for index, digest in zip(digests, seen.digests, strict=False) if digests[index] != digest]
    differing = differing if len(differing) >= MIN_DIFFERING else []
    notes = [describe_differing(differing) if differing else None, describe_growth(workload, seen.copied)]
    changes: dict[str, Any] = {"differing_samples": len(differing), "worker_threads_cpu": seen.threads_cpu}
    changes["worker_bytes"] = 0 if workload.forks_workers else seen.memory_bytes
    if workload.kind == "iterable":
        is_multiplied = workload.sample_counts.is_multiplied(seen.samples)
        duplicates = (is_multiplied and not seen.reads_worker_info) or has_equal_batches(seen.first_batches)
        is_idle = len(seen.delivered) == 1 and seen.delivered.total() >= COMPARED_BATCHES
        changes |= {"workers_duplicate_data": duplicates, "reads_worker_info": seen.reads_worker_info}
        changes["shards"] = profile.shards or (1 if is_idle else None)
        notes.append(IDLE_WORKER if is_idle else None)
        if is_multiplied and not duplicates:
            notes.append(OWN_EPOCHS.format(workload.sample_counts.samples))
    return profile.model_copy(update=changes | {"notes": (*profile.notes, *filter(None, notes))})


def _watch_workers(
    workload: LoadedWorkload, profile: WorkloadProfile, digests: Mapping[int, str], seen: Observation
) -> None:
    is_growing = workload.forks_workers and read_smaps("self")["Anonymous"] >= MIN_HEAP_BYTES
    many = int(MEMORY_BATCH_SECONDS / max(1e-9, profile.load_cost.per_item_seconds))
    goal = len(digests) or DUPLICATED_RATIO * (workload.sample_counts.samples or 0)
    memory_batch = min(MAX_MEMORY_BATCH, max(BATCH, many)) if is_growing else 0
    loader = _build_watched_loader(workload, digests, memory_batch)
    batches = iter(loader)
    pids = [worker.pid or 0 for worker in list_workers(batches)]
    deadline = next_reading = math.inf
    before: Mapping[int, float] = {}
    for number, batch in enumerate(batches, 1):
        now = time.perf_counter()
        if number == 1:
            deadline, next_reading = now + MAX_SECONDS, now + MEMORY_INTERVAL_SECONDS
        seen.digests += batch if digests else ()
        seen.note(batch, loader.batch_size or 1)
        if pids and number == USAGE_BATCHES[0]:
            before = read_thread_seconds(pids[0])
        elif pids and number == USAGE_BATCHES[1]:
            after, seen.memory_bytes = read_thread_seconds(pids[0]), measure_pss(pids[:1])
            spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
            loading = spent.pop(pids[0], 0.0)
            torch_threads = 1 if digests else 2  # one sends batches, and one the memory of tensors
            if len(spent) > torch_threads and sum(spent.values()) >= MIN_THREAD_SECONDS:
                seen.threads_cpu = sum(spent.values()) / max(MIN_THREAD_SECONDS, loading)
        if is_growing and now > next_reading:
            seen.copied.append((seen.samples, read_copied_bytes(pids)))
            next_reading = now + MEMORY_INTERVAL_SECONDS
        if now > deadline or (number >= MIN_BATCHES and seen.samples > goal and not is_growing):
            return


def _build_watched_loader(workload: LoadedWorkload, digests: Mapping[int, str], memory_batch: int) -> MeasuredLoader:
    """Build a loader of hashes, then of further samples; or else of the workload's own batches by worker."""
    parts = workload.parts
    changes: dict[str, Any] = {"worker_init_fn": WatchedInit(parts.dataset, parts.worker_init_fn)}
    if digests:
        indices, length = list(digests), len(parts.dataset) if memory_batch else 0  # type: ignore[arg-type]  # it has one
        changes |= {"dataset": HashedDataset(parts.dataset, digests), "collate_fn": list}
        pairs = (indices[start : start + BATCH] for start in range(0, len(indices), BATCH))
        starts = range(0, length, memory_batch or 1)
        others = (range(start, min(length, start + memory_batch)) for start in starts)
        changes["batch_sampler"] = chain(pairs, others)
    elif workload.kind == "iterable":
        collate = parts.collate_fn or (default_collate if parts.batched else default_convert)
        changes["collate_fn"] = RecordingCollate(collate)
    if digests or workload.own is None:
        workload = replace(workload, own=None, parts=replace(parts, **changes))
    return build_plain_loader(workload, BATCH, workers=2)


def describe_differing(indices: Sequence[int]) -> str:
    """Return the warning that workers return these samples differently."""
    named = ", ".join(map(str, indices[:3])) + (", ..." if len(indices) > 3 else "")
    return (
        f"Workers return different data than the main process: {len(indices)} of the compared samples differ (index "
        f"{named}), although repeated readings in the main process agree. A usual cause is a file that is opened "
        "before the workers are forked, which then share its position. Open files in the worker, in the first call of "
        "__getitem__."
    )
