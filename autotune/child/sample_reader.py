"""Reads samples in role main: for hashes and an epoch's length, and to find cached files and costly code."""

from __future__ import annotations

import cProfile
import hashlib
import io
import linecache
import pickle
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable, Collection
from itertools import takewhile
from typing import Any, Final

import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, SequentialSampler

from autotune.child.device import single_thread
from autotune.child.errors import FETCH_FILE, make_printable
from autotune.child.loader import build_plain_loader
from autotune.child.sample_counts import count_samples
from autotune.child.workload import LoadedWorkload, find_datasets, read_attribute
from autotune.protocol.workload_profile import CostlyLine
from autotune.system.machine import read_memory_limit
from autotune.system.procfs import PROC, read_numbers
from autotune.system.software import is_library
from autotune.units import format_bytes, format_seconds

MAX_SECONDS: Final = 1.0
BATCH: Final = 2  # samples
MAX_COMPARED: Final = 64  # samples
MIN_COMPARED: Final = 8
SAMPLERS: Final = (type(None), RandomSampler, SequentialSampler, DistributedSampler)  # indices from 0 to the length
CACHED_RATIO: Final = 3.0  # of the times of the first and the last reading of a sample that is cached
MIN_CACHED_SECONDS: Final = 1e-3  # that the first reading takes beyond the ratio: times of short readings vary
MIN_CACHED: Final = 4  # samples
READINGS: Final = 3  # of each sample, which must agree
MAX_CACHED_SHARE: Final = 0.8  # of memory that the files of an epoch may fill, to be cached in the next epoch
MAX_STORAGE_SHARE: Final = 0.5  # of the bytes; with more, trials read from the storage as training does


class _SamplePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        dense = value if value.layout == torch.strided else torch.empty(0)
        data = dense.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return tuple, ((str(value.dtype), *value.shape, data),)


def hash_sample(sample: Any) -> str:
    """Return a hash of a sample; its type if it cannot be pickled."""
    buffer = io.BytesIO()
    pickler = _SamplePickler(buffer)
    pickler.fast = True  # without references, which depend on the identity of objects
    try:
        pickler.dump(sample)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError):  # nested tensors, too
        return type(sample).__qualname__
    return hashlib.blake2b(buffer.getvalue(), digest_size=16).hexdigest()


def seed_rngs(seed: int) -> None:
    """Seed all global RNGs."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class HashedDataset(Dataset[str]):
    """Returns a hash of each of the `compared` samples, read with all global RNGs seeded by its index."""

    def __init__(self, dataset: Any, compared: Collection[int]) -> None:
        self._dataset, self._compared = dataset, compared

    def __getitem__(self, index: int) -> str:
        if index not in self._compared:
            self._dataset[index]
            return ""
        seed_rngs(index)
        return hash_sample(self._dataset[index])


class SampleReader:
    """Reads samples in this process for a moment."""

    def __init__(self, workload: LoadedWorkload) -> None:
        self._workload = workload
        self.digests: dict[int, str] = {}  # by index; empty if workers need not read the same, or cannot be compared
        self.epoch_samples: int | None = None  # of an iterable dataset; None if an epoch takes long
        self._cached = list[tuple[float, float]]()  # seconds of slow first readings, and of the last ones
        self._io: tuple[int, int] | None = None  # after the first samples, which may open files
        self.samples, self.read_bytes, self.storage_bytes = 0, 0, 0  # since then

    def read(self) -> None:
        """Read an epoch of an iterable dataset, or samples all over a map-style one, which workers may read again."""
        workload, parts = self._workload, self._workload.parts
        has_indices = workload.kind == "map" and type(parts.sampler) in SAMPLERS and parts.batch_sampler is None
        try:
            with single_thread():
                if workload.kind == "iterable" and not workload.batches_are_external:
                    self._read_epoch()
                elif has_indices:
                    self._read_hashes()
        except Exception:  # the trials will report it
            self.digests = {}
        seed_rngs(torch.seed())

    def _read_epoch(self) -> None:
        deadline, samples = time.perf_counter() + MAX_SECONDS, 0
        loader = build_plain_loader(self._workload, BATCH)
        for batch in loader:
            samples += (delivered := count_samples(batch, loader.batch_size))
            self._note(delivered)
            if time.perf_counter() > deadline:
                return
        self.epoch_samples = samples

    def _read_hashes(self) -> None:
        dataset: Any = self._workload.parts.dataset
        deadline = time.perf_counter() + MAX_SECONDS / READINGS
        indices = range(0, len(dataset), max(1, len(dataset) // MAX_COMPARED))[:MAX_COMPARED]
        hashed = HashedDataset(dataset, indices)

        def read(index: int) -> tuple[str, float]:
            started = time.perf_counter()
            return hashed[index], time.perf_counter() - started

        first = dict[int, tuple[str, float]]()
        for index in takewhile(lambda _: time.perf_counter() < deadline, indices):
            first[index] = read(index)
            self._note(1)
        if len(first) < MIN_COMPARED:
            return
        later = dict[int, float]()
        for index in [*first] * (READINGS - 1):
            digest, later[index] = read(index)
            if digest != first[index][0]:
                return
        if self._workload.forks_workers:  # others inherit nothing that could change their samples
            self.digests = {index: digest for index, (digest, _) in first.items()}
        pairs = [(seconds, later[index]) for index, (_, seconds) in first.items()]
        self._cached = [(slow, fast) for slow, fast in pairs[1:] if slow > CACHED_RATIO * fast + MIN_CACHED_SECONDS]

    def _note(self, samples: int) -> None:
        counts = read_numbers(PROC / "self" / "io")
        read_bytes, storage_bytes = counts.get("rchar:", 0), counts.get("read_bytes:", 0)
        if self._io is None:
            self._io = read_bytes, storage_bytes
            return
        self.samples += samples
        self.read_bytes, self.storage_bytes = read_bytes - self._io[0], storage_bytes - self._io[1]

    def describe_cache(self) -> str | None:
        """Return a warning if later epochs of a training run are faster or slower than trials, due to a cache."""
        total, memory_bytes = max(1, self.read_bytes, self.storage_bytes), read_memory_limit()
        epoch_samples = self._workload.expected_samples or self.epoch_samples or 0
        epoch_bytes, stored = epoch_samples * total / max(1, self.samples), self.storage_bytes / total
        if epoch_bytes <= MAX_CACHED_SHARE * memory_bytes:
            return self._describe_repeated_readings()
        if stored > MAX_STORAGE_SHARE or self.samples < MIN_COMPARED:
            return None
        return (
            f"An epoch reads about {format_bytes(epoch_bytes)}, and memory has {format_bytes(memory_bytes)}: training "
            f"will read from the storage what came from the page cache here ({1 - stored:.0%} of the bytes "
            f"of {self.samples} samples). This is a warm-cache throughput."
        )

    def _describe_repeated_readings(self) -> str | None:
        if len(self._cached) < MIN_CACHED:
            return None
        first, again = (format_seconds(statistics.median(seconds)) for seconds in zip(*self._cached, strict=True))
        return (
            f"A sample took {first} on its first reading and {again} on the next: the dataset or the page cache keeps "
            "it. Trials mostly measure first readings, so later epochs are faster than predicted: measure one without "
            "workers, too."
        )


def find_epoch_state(workload: LoadedWorkload, on_phase: Callable[[str], object]) -> str | None:
    """Return why the dataset may differ between epochs: its `set_epoch`, or an attribute that differs.

    Only numbers and strings are compared, and samples are not read by index: caches and open files may change.
    """
    datasets = dict(find_datasets(workload.parts.dataset))
    for path, dataset in datasets.items():
        if callable(read_attribute(dataset, "set_epoch")):
            return f"{path}.set_epoch()"

    def start_epoch() -> dict[str, str]:
        on_phase("comparing two epochs")  # each may start slowly
        loader = build_plain_loader(workload, BATCH)
        batches = iter(loader)
        next(iter(loader.index_source) if workload.kind == "map" else batches, None)
        attributes = ((path, getattr(one, "__dict__", {})) for path, one in datasets.items())
        held = ((f"{path}.{name}", value) for path, own in attributes for name, value in own.items())
        return {path: str(value) for path, value in held if isinstance(value, int | float | str)}

    try:
        first, second = ({}, {}) if workload.batches_are_external else (start_epoch(), start_epoch())
    except Exception:  # the trials will report it
        return None
    return next((name for name, value in second.items() if value != first.get(name, value)), None)


def find_costly_lines(workload: LoadedWorkload) -> tuple[CostlyLine, ...]:
    """Load under cProfile, and return the costliest functions of the user, each with the libraries that it calls."""
    if workload.own is not None:  # which may load elsewhere
        return ()
    profile, deadline = cProfile.Profile(), time.perf_counter() + 0.2
    try:
        with single_thread(), profile:
            for _ in build_plain_loader(workload, BATCH):
                if time.perf_counter() > deadline:
                    break
    except Exception:  # the trials will report it
        return ()
    stats: Any = pstats.Stats(profile)
    stats.calc_callees()
    totals = {function: row[3] for function, row in stats.stats.items()}
    below: dict[Any, float] = {}  # seconds in the user's functions that a function calls, also through libraries

    def is_foreign(function: Any) -> bool:
        return function[0] == "~" or is_library(function[0])  # built in, or of a library

    def measure(function: Any) -> float:
        if function not in below:
            below[function] = 0.0  # if it calls itself
            for callee, (*_, seconds) in stats.all_callees.get(function, {}).items():
                below[function] += seconds * (measure(callee) / max(1e-9, totals[callee]) if is_foreign(callee) else 1)
        return below[function]

    loading = max(1e-9, sum(totals[one] for one in totals if one[0].endswith(FETCH_FILE) and one[2] == "fetch"))
    shares = {one: min(1.0, (totals[one] - measure(one)) / loading) for one in totals if not is_foreign(one)}
    ranked = sorted(((share, *one) for one, share in shares.items() if share >= 0.05), reverse=True)
    return tuple(
        CostlyLine(file=make_printable(file), line=line, source=linecache.getline(file, line).strip(), share=share)
        for share, file, line, _ in ranked[:5]
    )
