"""Checks of the data that workers return, which no throughput shows.

Two workers are started once: they must return the same samples as another process, divide an iterable dataset between
them, and copy little of its memory and keep little in theirs, which trials are too short to show. An error ends the
checks; the trials report it.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, Final, NamedTuple

from torch.utils.data import default_collate, default_convert, get_worker_info

from autotune.child.errors import shut_down_workers
from autotune.child.loader import MeasuredLoader, build_plain_loader
from autotune.child.sample_counts import DUPLICATED_RATIO, count_samples
from autotune.child.sample_reader import HashedDataset, hash_sample
from autotune.child.trial import list_workers
from autotune.child.workload import LoadedWorkload, find_datasets
from autotune.profiles.device_prefetch import find_tensors
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.system.procfs import measure_pss, read_smaps
from autotune.units import format_bytes

MAX_SECONDS: Final = 1.0  # after the first batch
BATCH: Final = 2  # samples: with small batches workers take turns often
MIN_BATCHES: Final = 8
MIN_DIFFERING: Final = 4  # samples; fewer may be rare draws from a generator of the dataset's own
MIN_COMPARED_BATCHES: Final = 4  # two of each of two workers
_read_numbers: Final[set[str]] = set()  # in a worker process: attributes of its WorkerInfo that code has read

MEMORY_BATCH: Final = 8  # samples, when nothing but memory is watched
MEMORY_INTERVAL_SECONDS: Final = 0.15  # in the first one, a worker copies what any worker copies
MIN_READINGS: Final = 5  # the last ones, each of which must be higher than the one before
MIN_GROWTH_BYTES: Final = 32 * 2**20  # between the first and the last of them
MIN_NOTED_BYTES: Final = 64 * 2**20  # copied by one worker
MIN_UNEXPLAINED_BYTES: Final = 512 * 2**20  # copied by one worker without a collection that explains it; or kept
MIN_SHARE: Final = 0.1  # of the copies that a collection explains, without what its entries refer to

DIFFERING: Final = (
    "Workers return different data than the main process: {} of the compared samples differ (index {}), although "
    "repeated readings in the main process agree. A usual cause is a file that is opened before the workers are "
    "forked, which then share its position. Open files in the worker, in the first call of __getitem__. dltune tries "
    "no workers unless you pass --max-workers."
)
NEW_SAMPLES: Final = (
    "The factory makes other samples each time that it is called ({} of the compared samples differ), so that dltune "
    "cannot check whether workers return the right ones. Seed the random numbers in the factory for this check."
)
DUPLICATES: Final = (
    "Each worker returns all the data, so that dltune tries at most one: shard the data in __iter__ by "
    "get_worker_info() to use more."
)
UNSHARDED: Final = (
    "__iter__ does not read get_worker_info(): unless it draws samples at random, each worker returns all of them, and "
    "an epoch with 4 workers is 4 times as long. If so, shard the data, or pass --max-workers 1."
)
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


def record_batch(collate: Callable[[Any], Any], samples: Any) -> WorkerBatch:
    """Make a batch in a worker by a `collate_fn`."""
    worker, started = object.__getattribute__(get_worker_info(), "id"), time.perf_counter()
    batch = collate(samples)
    return WorkerBatch(worker, bool(_read_numbers), time.perf_counter() - started, batch)


def watch_worker(dataset: Any, then: Callable[[int], None] | None, worker_id: int) -> None:
    """Record from now on whether code reads the worker's number; call the user's `worker_init_fn`.

    User code finds its own dataset in `get_worker_info()`, even if the loader has a wrapper of it.
    """
    info = get_worker_info()

    def read_attribute(info: Any, name: str) -> Any:
        _read_numbers.update({name} & {"id", "num_workers"})  # those that sharding code reads
        return object.__getattribute__(info, name)

    object.__setattr__(info, "dataset", dataset)  # it is frozen
    type.__setattr__(type(info), "__getattribute__", read_attribute)  # in this worker process only
    if then is not None:
        then(worker_id)


@dataclass(slots=True)
class Observation:
    """Behaviour of two workers, as far as they have been watched."""

    reads_worker_info: bool  # whether code read the number of its worker
    samples: int = 0
    digests: list[str] = field(default_factory=list)  # of samples of a map-style dataset
    delivered: Counter[int] = field(default_factory=Counter)  # batches of an iterable dataset by worker
    hashes: list[str] = field(default_factory=list)  # of these batches, until those of the two workers differ
    are_equal: bool = True  # whether each pair of consecutive batches has been equal so far
    is_whole: bool = False  # whether the epoch has ended
    copied: list[tuple[int, int]] = field(default_factory=list)  # samples so far, and bytes copied by then
    allocated: list[tuple[int, int]] = field(default_factory=list)  # and bytes that the workers hold
    memory_bytes: int = 0  # of a worker

    @property
    def are_duplicates(self) -> bool:
        """Whether both workers deliver equal data; constant data proves nothing."""
        return self.are_equal and len(self.hashes) >= MIN_COMPARED_BATCHES and len(set(self.hashes)) > 1

    def compare(self, batch: Any) -> None:
        """Compare the tensors of a batch with those of the one before, as the workers take turns."""
        if self.are_equal:
            self.hashes.append(hash_sample(list(find_tensors(batch))))
            self.are_equal = len(self.hashes) % 2 == 1 or self.hashes[-2] == self.hashes[-1]


def check_workers(
    workload: LoadedWorkload,
    profile: WorkloadProfile,
    digests: Mapping[int, str],
    after_loading: Callable[[], object] = lambda: None,
) -> WorkloadProfile:
    """Watch two workers for a moment, and complete the profile; `digests` are those of another process.

    `after_loading` is called before this process itself may read samples.
    """
    seen = Observation(reads_worker_info=workload.own is not None)  # a custom loader sets up workers its own way
    try:
        _watch_workers(workload, digests, seen)
    except Exception as error:
        shut_down_workers(error)
    after_loading()
    notes = []
    changes: dict[str, Any] = {"worker_bytes": 0 if workload.forks_workers else seen.memory_bytes}
    differing = [index for index, digest in zip(digests, seen.digests, strict=False) if digests[index] != digest]
    if len(differing) >= MIN_DIFFERING:
        if _differ_here(workload, differing, digests):
            notes.append(NEW_SAMPLES.format(len(differing)))
        else:
            changes["differing_samples"] = len(differing)
            named = ", ".join(map(str, differing[:3])) + (", ..." if len(differing) > 3 else "")
            notes.append(DIFFERING.format(len(differing), named))
    growth = describe_kept(workload.expected_samples, seen.allocated) or describe_growth(workload, seen.copied)
    notes += [] if growth is None else [growth]
    if workload.kind == "iterable":
        is_multiplied = workload.sample_counts.is_multiplied(seen.samples)
        is_divided = seen.is_whole and workload.sample_counts.samples is not None and not is_multiplied
        duplicates = (is_multiplied and not seen.reads_worker_info) or (seen.are_duplicates and not is_divided)
        changes |= {"workers_duplicate_data": duplicates, "reads_worker_info": seen.reads_worker_info}
        if len(seen.delivered) == 1 and seen.delivered.total() >= MIN_COMPARED_BATCHES:
            changes["shards"] = profile.shards or 1
            notes.append(IDLE_WORKER)
        is_shared = seen.reads_worker_info or workload.parts.worker_init_fn is not None
        if duplicates:
            notes.append(DUPLICATES)
        elif is_multiplied:
            notes.append(OWN_EPOCHS.format(workload.sample_counts.samples))
        elif not is_shared and len(seen.delivered) > 1:
            notes.append(UNSHARDED)
    return profile.model_copy(update=changes | {"notes": (*notes, *profile.notes)})


def _differ_here(workload: LoadedWorkload, indices: Sequence[int], digests: Mapping[int, str]) -> bool:
    """Return whether samples also differ from `digests`, of another process, if this process itself reads them."""
    here = HashedDataset(workload.parts.dataset, digests)
    try:
        return all(here[index] != digests[index] for index in indices[:MIN_DIFFERING])
    except Exception:
        return False


def _watch_workers(workload: LoadedWorkload, digests: Mapping[int, str], seen: Observation) -> None:
    is_copying = is_growing = workload.forks_workers and workload.own_bytes >= MIN_NOTED_BYTES
    first = (0, 0)  # samples and memory after the first batches
    goal = len(digests) or DUPLICATED_RATIO * (workload.sample_counts.samples or 0)
    loader = _build_watched_loader(workload, digests)
    batches = iter(loader)
    pids = [worker.pid or 0 for worker in list_workers(batches)]
    deadline = next_reading = math.inf
    for number, batch in enumerate(batches, 1):
        now = time.perf_counter()
        if number == 1:
            deadline, next_reading = now + MAX_SECONDS, now + MEMORY_INTERVAL_SECONDS
        seen.digests += batch if digests else ()
        if isinstance(batch, WorkerBatch):
            seen.delivered[batch.worker] += 1
            seen.reads_worker_info |= batch.reads_worker_info
            batch = batch.batch  # noqa: PLW2901
        if workload.kind == "iterable":
            seen.compare(batch)
        seen.samples += count_samples(batch, loader.batch_size)
        if number == MIN_BATCHES - 2:
            seen.memory_bytes = measure_pss(pids[:1])
        if number == MIN_BATCHES:
            first = seen.samples, count_allocated_bytes(map(read_smaps, pids))
        if now > next_reading:
            sizes = list(map(read_smaps, pids))
            if is_copying:
                seen.copied.append((seen.samples, count_copied_bytes(sizes)))
            seen.allocated.append((seen.samples, count_allocated_bytes(sizes)))
            next_reading = now + MEMORY_INTERVAL_SECONDS
        is_enough = number >= MIN_BATCHES and seen.samples > goal and not seen.are_duplicates
        if is_enough and not is_growing:
            readings = [first, (seen.samples, count_allocated_bytes(map(read_smaps, pids)))]
            is_growing = project_growth(workload.expected_samples, readings) >= MIN_UNEXPLAINED_BYTES
        if now > deadline or (is_enough and not is_growing):
            return
    seen.is_whole = True


def _build_watched_loader(workload: LoadedWorkload, digests: Mapping[int, str]) -> MeasuredLoader:
    """Build a loader of hashes, then of further samples; or else of the workload's own batches by worker."""
    parts = workload.parts
    changes: dict[str, Any] = {"worker_init_fn": partial(watch_worker, parts.dataset, parts.worker_init_fn)}
    if digests:
        indices, others = list(digests), range(len(parts.dataset))  # type: ignore[arg-type]
        pairs = (indices[start : start + BATCH] for start in range(0, len(indices), BATCH))
        more = (others[start : start + MEMORY_BATCH] for start in range(0, len(others), MEMORY_BATCH))
        dataset = HashedDataset(parts.dataset, digests)
        changes |= {"dataset": dataset, "collate_fn": list, "sampler": None, "batch_sampler": chain(pairs, more)}
    elif workload.kind == "iterable":
        collate = parts.collate_fn or (default_collate if parts.batched else default_convert)
        changes["collate_fn"] = partial(record_batch, collate)
    if digests or workload.own is None:
        workload = replace(workload, own=None, parts=replace(parts, **changes))
    return build_plain_loader(workload, BATCH, workers=2)


def count_copied_bytes(sizes: Iterable[Mapping[str, int]]) -> int:
    """Return how much memory forked processes copied: pages that are private and not new; differences count."""
    return sum(size["Private_Dirty"] - size["Anonymous"] for size in sizes)


def count_allocated_bytes(sizes: Iterable[Mapping[str, int]]) -> int:
    """Return the memory that processes have allocated, or have inherited; differences count."""
    return sum(size["Anonymous"] for size in sizes)


def project_growth(samples: int | None, readings: Sequence[tuple[int, int]]) -> float:
    """Return the bytes that an epoch adds at the rate of some readings; 0 if its samples are unknown."""
    (before, least), (after, most) = readings[0], readings[-1]
    return (most - least) / max(1, after - before) * (samples or 0)


def describe_kept(samples: int | None, readings: Sequence[tuple[int, int]]) -> str | None:
    """Return a note if workers may keep what they load; `readings` are samples so far, and bytes allocated by then."""
    readings = readings[-MIN_READINGS:]  # at first, workers use memory that they have inherited
    if len(readings) < MIN_READINGS:
        return None
    grown, kept = readings[-1][1] - readings[0][1], project_growth(samples, readings)
    is_steady = all(before < after for (_, before), (_, after) in pairwise(readings))
    if not is_steady or grown < MIN_GROWTH_BYTES or kept < MIN_UNEXPLAINED_BYTES:
        return None
    return (
        f"The memory of the workers grew by {format_bytes(grown)} in {readings[-1][0] - readings[0][0]:,} samples. If "
        f"it goes on, an epoch adds {format_bytes(kept)}, which short trials do not show. If the dataset keeps samples "
        "in a cache, limit its size."
    )


def describe_growth(workload: LoadedWorkload, readings: Sequence[tuple[int, int]]) -> str | None:
    """Return a note if each worker will copy much; `readings` are samples so far, and bytes copied by then."""
    if len(readings) < 2 or (seen := readings[-1][1] - readings[0][1]) < 2**20:
        return None
    rate = seen / max(1, readings[-1][0] - readings[0][0])
    heap, samples = read_smaps("self")["Anonymous"], workload.expected_samples
    copied = heap if samples is None else min(heap, int(rate * samples))
    size, path, value = max(_list_collections(workload.parts.dataset), default=(0, "", ()))
    is_explained = size > MIN_SHARE * copied
    if copied < (MIN_NOTED_BYTES if is_explained else MIN_UNEXPLAINED_BYTES):
        return None  # every worker copies a little
    cure = "Keep names and labels in numpy arrays or tensors instead of lists and dicts."
    if is_explained:
        entry = next(iter(value.values() if isinstance(value, dict) else value))
        kept = f"autotune.shared({path})" if isinstance(value, list | tuple) else "numpy arrays or tensors"
        held = f"`{path}`, a {type(value).__name__} of {len(value):,} objects of type {type(entry).__name__}"
        cure = f"Most is in {held}: keep it in {kept}, which workers share."
    return (
        f"Each worker will copy up to {format_bytes(copied)} of the dataset's memory ({format_bytes(1000 * rate)} in "
        f"1,000 samples; 8 workers: {format_bytes(8 * copied)}), more than short trials show: Python writes a "
        f"reference count into every object that it reads. {cure}"
    )


def _list_collections(dataset: Any) -> Iterator[tuple[float, str, Any]]:
    for path, one in find_datasets(dataset):
        for name, value in list(getattr(one, "__dict__", {}).items()):
            if type(value) in (list, tuple, dict, set) and value:
                entries = value.values() if type(value) is dict else value
                size = statistics.fmean(map(sys.getsizeof, islice(entries, 64)))
                yield sys.getsizeof(value) + len(value) * size, f"{path}.{name}", value
