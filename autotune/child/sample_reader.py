"""Reads samples in role main: hashes them, counts an epoch, and finds those that raise or come from the page cache."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import sys
import time
from collections.abc import Collection
from itertools import takewhile
from typing import Any, Final

import torch
from torch.utils.data import Dataset

from autotune.child.device import single_thread
from autotune.child.loader import build_plain_loader
from autotune.child.sample_checks import count_samples
from autotune.child.workload import LoadedWorkload
from autotune.system.machine import read_memory_limit
from autotune.system.processes import PROC, read_numbers
from autotune.units import format_bytes

MAX_SECONDS: Final = 1.0
BATCH: Final = 2  # samples
MAX_COMPARED: Final = 64  # samples
MIN_COMPARED: Final = 8
READINGS: Final = 3  # of each sample, which must agree
MAX_CACHED_SHARE: Final = 0.8  # of memory that the files of an epoch may fill, to be cached in the next epoch
MAX_STORAGE_SHARE: Final = 0.5  # of the bytes; with more, trials read from the storage as training does
MAX_TRIED: Final = 2000  # samples, to find those that raise
MAX_FIRST_FAILURES: Final = 20  # in a row, from the first on: then every sample may raise


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
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
        return type(sample).__qualname__
    return hashlib.blake2b(buffer.getvalue(), digest_size=16).hexdigest()


def seed_rngs(seed: int | None) -> None:
    """Seed all global RNGs; None draws a seed."""
    random.seed(seed)
    torch.manual_seed(seed) if seed is not None else torch.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


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


class SampleReader:
    """Reads samples in this process for a moment, all but the first with the bytes that were read for them.

    Attributes:
        digests: Hashes of samples by index; empty if repeated readings differ, or if samples are read in an own order.
        epoch_samples: Samples in an epoch of an iterable dataset; None if it takes long.
    """

    def __init__(self, workload: LoadedWorkload) -> None:
        self._workload = workload
        self.digests: dict[int, str] = {}
        self.epoch_samples: int | None = None
        self._io: tuple[int, int] | None = None  # after the first samples, which may open files
        self.samples, self.read_bytes, self.storage_bytes = 0, 0, 0

    def read(self) -> None:
        """Read an epoch of an iterable dataset, or samples all over a map-style one that workers are to read again."""
        workload = self._workload
        try:
            with single_thread():
                if workload.kind == "iterable" and not workload.is_opaque:
                    self._read_epoch()
                elif workload.forks_workers and has_indices(workload):
                    self._read_hashes()
        except Exception:  # the trials will report it
            self.digests = {}
        seed_rngs(None)

    def _read_epoch(self) -> None:
        deadline, samples = time.perf_counter() + MAX_SECONDS, 0
        loader = build_plain_loader(self._workload, BATCH)
        for batch in loader:
            samples += (delivered := count_samples(batch, loader.batch_size or 1))
            self._note(delivered)
            if time.perf_counter() > deadline:
                return
        self.epoch_samples = samples

    def _read_hashes(self) -> None:
        dataset: Any = self._workload.parts.dataset
        deadline = time.perf_counter() + MAX_SECONDS / READINGS
        indices = range(0, len(dataset), max(1, len(dataset) // MAX_COMPARED))[:MAX_COMPARED]
        hashed = HashedDataset(dataset, indices)
        for index in takewhile(lambda _: time.perf_counter() < deadline, indices):
            self.digests[index] = hashed[index]
            self._note(1)
        again = (hashed[index] == digest for _ in range(1, READINGS) for index, digest in self.digests.items())
        if len(self.digests) < MIN_COMPARED or not all(again):
            self.digests = {}

    def _note(self, samples: int) -> None:
        counts = read_numbers(PROC / "self" / "io")
        now = counts.get("rchar:", 0), counts.get("read_bytes:", 0)
        if self._io is not None:
            self.samples += samples
            self.read_bytes, self.storage_bytes = now[0] - self._io[0], now[1] - self._io[1]
        self._io = self._io or now

    def describe_storage(self) -> str | None:
        """Return a warning if samples came from the page cache, which cannot hold an epoch."""
        total, memory_bytes = max(1, self.read_bytes, self.storage_bytes), read_memory_limit()
        epoch_samples = self._workload.promised_samples or self.epoch_samples or 0
        epoch_bytes, stored = epoch_samples * total / max(1, self.samples), self.storage_bytes / total
        is_cached = epoch_bytes <= MAX_CACHED_SHARE * memory_bytes
        if is_cached or stored > MAX_STORAGE_SHARE or self.samples < MIN_COMPARED:
            return None
        return (
            f"An epoch reads about {format_bytes(epoch_bytes)}, and memory has {format_bytes(memory_bytes)}: training "
            f"will read from the storage what came from the page cache here ({1 - stored:.0%} of the bytes "
            f"of {self.samples} samples). This is a warm-cache throughput."
        )


def has_indices(workload: LoadedWorkload) -> bool:
    """Return whether samples can be read by index, in any order."""
    parts = workload.parts
    return workload.kind == "map" and parts.sampler is None and parts.batch_sampler is None


def describe_failures(workload: LoadedWorkload) -> str | None:
    """Return how many of some random samples raise; None if all or none do, or if they have no index."""
    dataset: Any = workload.parts.dataset
    if not has_indices(workload):
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
