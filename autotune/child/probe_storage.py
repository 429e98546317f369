"""Measures what reading a sample takes; warns if trials read from memory what training reads from the storage."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeVar

from autotune.system.processes import PROC, read_numbers
from autotune.units import format_bytes, format_percent

MIN_SAMPLES: Final = 8  # fewer say nothing
MAX_CACHED_SHARE: Final = 0.8  # of memory that the files of an epoch may fill, and stay there for the next
MAX_STORAGE_SHARE: Final = 0.5  # of all bytes; with more, the trials read from the storage as training does

Value = TypeVar("Value")


class SampleRead(NamedTuple):
    """What reading one sample took."""

    seconds: float
    read_bytes: int = 0  # by read calls, from memory or the storage
    storage_bytes: int = 0  # from the storage, by read calls or mapped files

    def share(self, samples: int) -> SampleRead:
        """Return the part of one of so many samples that were read together."""
        return SampleRead(self.seconds / samples, self.read_bytes // samples, self.storage_bytes // samples)


def measure_read(read: Callable[[], Value]) -> tuple[Value, SampleRead]:
    """Read a sample, and measure what that took; bytes are 0 if the system does not count them."""
    before = _read_counters()
    began = time.perf_counter()
    value = read()
    seconds = time.perf_counter() - began
    after = _read_counters()
    return value, SampleRead(seconds, after[0] - before[0], after[1] - before[1])


def measure_reads(values: Iterable[Value]) -> Iterator[tuple[Value, SampleRead]]:
    """Iterate over values, with what reading each took."""
    remaining = iter(values)
    while True:
        try:
            yield measure_read(partial(next, remaining))
        except StopIteration:
            return


def _read_counters() -> tuple[int, int]:
    counts = read_numbers(PROC / "self" / "io")
    return counts.get("rchar:", 0), counts.get("read_bytes:", 0)


def describe_storage(reads: Collection[SampleRead], samples: int, memory_bytes: int) -> str | None:
    """Return a warning if samples came from the page cache, which cannot hold what an epoch reads.

    Args:
        reads: Those of some samples, spread over all of them or the first of a stream. The very first is left out, as
            it may have opened files.
        samples: Samples in an epoch.
        memory_bytes: Memory of the machine.
    """
    seen = list(reads)[1:]
    if len(seen) < MIN_SAMPLES:
        return None
    per_sample = statistics.fmean(max(read.read_bytes, read.storage_bytes) for read in seen)
    stored = sum(read.storage_bytes for read in seen) / max(1.0, per_sample * len(seen))
    if samples * per_sample <= MAX_CACHED_SHARE * memory_bytes or stored > MAX_STORAGE_SHARE:
        return None
    return (
        f"An epoch reads about {format_bytes(samples * per_sample)}, and memory has {format_bytes(memory_bytes)}: "
        f"training will read from the storage what came from the page cache here ({format_percent(1 - stored)} of the "
        f"bytes of {len(seen)} samples). This is a warm-cache throughput."
    )
