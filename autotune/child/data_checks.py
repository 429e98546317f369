"""Checks of the data that no throughput shows. An error ends a check: the trials report it.

Role main reads samples: it hashes them, counts an epoch, and finds samples that raise or come from the page cache. Role
workers starts two workers once: they must return the same samples, and divide an iterable dataset between them.
Meanwhile their threads and memory are measured.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any, Final

import torch
from torch.utils.data import Dataset, default_collate, default_convert

from autotune.child.copied_memory import MIN_HEAP_BYTES, describe_growth, read_copied_bytes
from autotune.child.device import single_thread
from autotune.child.errors import shut_down_workers
from autotune.child.factory_calls import MeasuredLoader
from autotune.child.loader_building import build_plain_loader
from autotune.child.sample_checks import DUPLICATED_RATIO, count_samples
from autotune.child.sharding import (
    COMPARED_BATCHES,
    IDLE_WORKER,
    RecordingCollate,
    WatchedInit,
    WorkerBatch,
    describe_epochs,
    has_equal_batches,
)
from autotune.child.trial import list_workers
from autotune.child.workload import LoadedWorkload
from autotune.profiles.device_prefetch import find_tensors
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.system.machine import read_memory_limit
from autotune.system.processes import PROC, measure_pss, read_numbers, read_smaps, read_thread_seconds
from autotune.units import format_bytes, format_percent

MAX_SECONDS: Final = 1.0  # of reading samples, and of two workers after their first batch
BATCH: Final = 2  # samples: with small batches workers take turns often
MEMORY_BATCH: Final = 8  # samples, when nothing but memory is watched
MAX_COMPARED: Final = 64  # samples
MIN_COMPARED: Final = 8
MIN_DIFFERING: Final = 4  # fewer may be rare draws from a generator of the dataset's own
READINGS: Final = 3  # in one process, which must agree
USAGE_BATCHES: Final = (2, 6)  # between them a worker's threads are measured; libraries start theirs before
MIN_BATCHES: Final = 8
WORKER_THREADS: Final = 3  # one that loads, and two of torch that send batches
MIN_THREAD_SECONDS: Final = 5e-3  # of CPU time
MEMORY_INTERVAL_SECONDS: Final = 0.15  # in the first one, a worker copies what any worker copies
MAX_CACHED_SHARE: Final = 0.8  # of memory that the files of an epoch may fill, to be cached in the next epoch
MAX_STORAGE_SHARE: Final = 0.5  # of the bytes; with more, trials read from the storage as training does
MAX_TRIED: Final = 2000  # samples, to find those that raise
MAX_FIRST_FAILURES: Final = 20  # in a row, from the first on: then every sample may raise


class _SamplePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        is_dense, data = value.layout == torch.strided, b""
        if is_dense:
            data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return tuple, ((str(value.dtype), *value.shape, data),)


def hash_sample(sample: Any) -> str:
    """Return a hash of a sample; its type if it cannot be pickled."""
    buffer = io.BytesIO()
    pickler = _SamplePickler(buffer)
    pickler.fast = True  # without references, which depend on the identity of objects
    try:
        pickler.dump(sample)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        return type(sample).__qualname__
    return hashlib.blake2b(buffer.getvalue(), digest_size=16).hexdigest()


def seed_rngs(seed: int | None) -> None:
    """Seed all global RNGs; None draws a seed."""
    random.seed(seed)
    torch.manual_seed(seed) if seed is not None else torch.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed)


class HashedDataset(Dataset[str]):
    """Returns a hash of each of the `compared` samples, read with all global RNGs seeded by its index."""

    def __init__(self, dataset: Any, compared: Collection[int]) -> None:
        self._dataset = dataset
        self._compared = compared

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> str:
        is_compared = index in self._compared
        if is_compared:
            seed_rngs(index)
        sample = self._dataset[index]
        return hash_sample(sample) if is_compared else ""


@dataclass(slots=True)
class Reading:
    """Samples as this process read them: hashes by index if readings agree, the length of an epoch, and a note."""

    digests: dict[int, str] = field(default_factory=dict)
    epoch_samples: int | None = None  # of an iterable dataset
    storage_note: str | None = None


def read_samples(workload: LoadedWorkload) -> Reading:
    """Read samples for a moment: an epoch of an iterable dataset, or samples all over a map-style one."""
    found, meter = Reading(), ReadMeter()
    deadline = time.perf_counter() + MAX_SECONDS
    if workload.is_opaque:
        return found
    try:
        with single_thread():
            if workload.kind == "iterable":
                loader, samples = build_plain_loader(workload, BATCH), 0
                for batch in takewhile(lambda _: time.perf_counter() < deadline, loader):
                    meter.note(delivered := count_samples(batch, loader.batch_size or 1))
                    samples += delivered
                found.epoch_samples = samples if time.perf_counter() < deadline else None
            elif is_comparable(workload):
                found.digests = _read_hashes(workload, meter)
    except Exception:
        return found
    finally:
        seed_rngs(None)
    found.storage_note = meter.describe(workload.promised_samples or found.epoch_samples or 0)
    return found


def is_comparable(workload: LoadedWorkload) -> bool:
    """Return whether samples can be read by index, and forked workers may share what they read from."""
    parts = workload.parts
    return workload.kind == "map" and workload.forks_workers and parts.sampler is None and parts.batch_sampler is None


def _read_hashes(workload: LoadedWorkload, meter: ReadMeter) -> dict[int, str]:
    """Hash samples, unless two readings of a sample differ."""
    length = len(workload.parts.dataset)  # type: ignore[arg-type]  # a map dataset without a sampler has a length
    indices = range(0, length, max(1, length // MAX_COMPARED))[:MAX_COMPARED]
    hashed, found = HashedDataset(workload.parts.dataset, indices), {}
    deadline = time.perf_counter() + MAX_SECONDS / READINGS
    for index in takewhile(lambda _: time.perf_counter() < deadline, indices):
        found[index] = hashed[index]
        meter.note(1)
    again = (hashed[index] == digest for _ in range(1, READINGS) for index, digest in found.items())
    return found if len(found) >= MIN_COMPARED and all(again) else {}


class ReadMeter:
    """Counts the bytes that this process reads for samples after the first ones, which may open files."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        self.samples, self.read_bytes, self.stored_bytes = 0, 0, 0

    def note(self, samples: int) -> None:
        """Record that so many samples have been read."""
        counts = read_numbers(PROC / "self" / "io")
        now = counts.get("rchar:", 0), counts.get("read_bytes:", 0)
        if self._first is not None:
            self.samples += samples
            self.read_bytes, self.stored_bytes = now[0] - self._first[0], now[1] - self._first[1]
        self._first = self._first or now

    def describe(self, epoch_samples: int) -> str | None:
        """Return a warning if samples came from the page cache, which cannot hold an epoch."""
        read, memory_bytes = max(1, self.read_bytes, self.stored_bytes), read_memory_limit()  # mapped files are stored
        epoch_bytes, stored = epoch_samples * read / max(1, self.samples), self.stored_bytes / read
        is_cold = epoch_bytes <= MAX_CACHED_SHARE * memory_bytes or stored > MAX_STORAGE_SHARE
        if is_cold or self.samples < MIN_COMPARED:
            return None
        return (
            f"An epoch reads about {format_bytes(epoch_bytes)}, and memory has {format_bytes(memory_bytes)}: training "
            f"will read from the storage what came from the page cache here ({format_percent(1 - stored)} of the bytes "
            f"of {self.samples} samples). This is a warm-cache throughput."
        )


def describe_failures(workload: LoadedWorkload) -> str | None:
    """Return how many of some random samples raise; None if all or none do, or if they have no index."""
    dataset: Any = workload.parts.dataset
    if workload.kind != "map" or workload.parts.sampler is not None or workload.parts.batch_sampler is not None:
        return None
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    deadline, tried, failed = time.perf_counter() + 2 * MAX_SECONDS, 0, []
    for tried, index in enumerate(order[:MAX_TRIED].tolist(), 1):
        try:
            dataset[index]
        except Exception:
            failed.append(index)
        if len(failed) == tried >= MAX_FIRST_FAILURES or time.perf_counter() > deadline:
            break
    if not 0 < len(failed) < tried:
        return None
    verb = "raises" if len(failed) == 1 else "raise"
    return (
        f"About {len(failed)} of {tried:,} samples {verb} (one is sample {failed[0]}) in the main process. Training "
        "would hit them too: fix these samples, or make the dataset skip them."
    )


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

    def note(self, batch: Any) -> None:
        """Record a batch."""
        if isinstance(batch, WorkerBatch):
            self.delivered[batch.worker] += 1
            self.reads_worker_info |= batch.reads_worker_info
            batch = batch.batch
        self.samples += count_samples(batch, BATCH)
        if len(self.first_batches) < COMPARED_BATCHES:
            self.first_batches.append([tensor.cpu() for tensor in find_tensors(batch)])


def check_workers(workload: LoadedWorkload, profile: WorkloadProfile, digests: Mapping[int, str]) -> WorkloadProfile:
    """Start two workers, watch them for a moment, and return the profile with what they did.

    `digests` are those of `read_samples` in another process.
    """
    seen = Observation(reads_worker_info=workload.own is not None)  # a custom loader sets up workers its own way
    try:
        _watch_workers(workload, digests, seen)
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
        is_per_worker = is_multiplied and not duplicates
        notes += [describe_epochs(workload.sample_counts.samples) if is_per_worker else None, IDLE_WORKER if is_idle else None]
    return profile.model_copy(update=changes | {"notes": (*profile.notes, *filter(None, notes))})


def _watch_workers(workload: LoadedWorkload, digests: Mapping[int, str], seen: Observation) -> None:
    is_growing = workload.forks_workers and read_smaps("self")["Anonymous"] >= MIN_HEAP_BYTES
    goal = len(digests) or DUPLICATED_RATIO * (workload.sample_counts.samples or 0)
    batches = iter(_build_watched_loader(workload, digests, is_growing=is_growing))
    pids = [worker.pid or 0 for worker in list_workers(batches)]
    deadline = next_reading = math.inf
    before: Mapping[int, float] = {}
    for number, batch in enumerate(batches, 1):
        now = time.perf_counter()
        if number == 1:
            deadline, next_reading = now + MAX_SECONDS, now + MEMORY_INTERVAL_SECONDS
        seen.digests += batch if digests else ()
        seen.note(batch)
        if pids and number == USAGE_BATCHES[0]:
            before = read_thread_seconds(pids[0])
        elif pids and number == USAGE_BATCHES[1]:
            seen.threads_cpu = compare_threads(before, read_thread_seconds(pids[0]), pids[0])
            seen.memory_bytes = measure_pss(pids[:1])
        if is_growing and now > next_reading:
            seen.copied.append((seen.samples, read_copied_bytes(pids)))
            next_reading = now + MEMORY_INTERVAL_SECONDS
        if now > deadline or (number >= MIN_BATCHES and seen.samples > goal and not is_growing):
            return


def _build_watched_loader(workload: LoadedWorkload, digests: Mapping[int, str], *, is_growing: bool) -> MeasuredLoader:
    """Build a loader of hashes, or else of the workload's own batches, which say which worker made them."""
    parts = workload.parts
    changes: dict[str, Any] = {"worker_init_fn": WatchedInit(parts.dataset, parts.worker_init_fn)}
    if digests:
        indices, length = list(digests), len(parts.dataset) if is_growing else 0  # type: ignore[arg-type]  # it has one
        changes |= {"dataset": HashedDataset(parts.dataset, digests), "collate_fn": list}
        pairs = (indices[start : start + BATCH] for start in range(0, len(indices), BATCH))
        others = (range(start, min(length, start + MEMORY_BATCH)) for start in range(0, length, MEMORY_BATCH))
        changes["batch_sampler"] = chain(pairs, others)
    elif workload.kind == "iterable":
        collate = parts.collate_fn or (default_collate if parts.batched else default_convert)
        changes["collate_fn"] = RecordingCollate(collate)
    if digests or workload.own is None:
        workload = replace(workload, own=None, parts=replace(parts, **changes))
    return build_plain_loader(workload, BATCH, workers=2)


def compare_threads(before: Mapping[int, float], after: Mapping[int, float], loading: int) -> float:
    """Return the CPU time of other threads over that of the loading one; 0 if there are only those that send."""
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
    others = sum(seconds for thread, seconds in spent.items() if thread != loading)
    if len(spent) <= WORKER_THREADS or others < MIN_THREAD_SECONDS:
        return 0.0
    return others / max(MIN_THREAD_SECONDS, spent.get(loading, 0.0))


def describe_differing(indices: Sequence[int]) -> str:
    """Return the warning that workers return these samples differently."""
    named = ", ".join(map(str, indices[:3])) + (", ..." if len(indices) > 3 else "")
    return (
        f"Workers return different data than the main process: {len(indices)} of the compared samples differ (index "
        f"{named}), although repeated readings in the main process agree. A usual cause is a file that is opened "
        "before the workers are forked, which then share its position. Open files in the worker, in the first call of "
        "__getitem__."
    )
