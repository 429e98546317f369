"""Do samples come from memory here that training, in the course of an epoch, would have to get from the storage?"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Final

from autotune.child.sample_reads import SampleRead
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

MIN_SAMPLES: Final = 8  # of fewer nothing is said
MAX_CACHED_SHARE: Final = 0.8  # of memory that the files of an epoch may fill, and stay there for the next
MIN_STORAGE_SHARE: Final = 0.5  # of a sample's bytes that the storage gave; then it was a cold one
MAX_STORAGE_SHARE: Final = 0.5  # of all bytes; with more, the trials meet the storage as training does


def describe_storage(reads: Collection[SampleRead], samples: int, memory_bytes: int) -> str | None:
    """Say that the page cache cannot hold what an epoch reads, where samples were read from it; else None.

    `reads` are those of some samples, spread over all of them or the first of a stream; the very first may have opened
    files, and is out.
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
        f"training will read from the storage what was found in memory here ({format_percent(1 - stored)} of the bytes "
        f"of {len(seen)} samples), so the throughput told here is that of a warm cache.{_describe_cold(seen)}"
    )


def _describe_cold(seen: Collection[SampleRead]) -> str:
    """Say what samples took that did come from the storage, if any, and how fast they can be at that, one by one."""
    cold = [read for read in seen if 0 < read.read_bytes * MIN_STORAGE_SHARE < read.storage_bytes]
    warm = [read for read in seen if read not in cold]
    if not cold or not warm:
        return " What a cold one gives shows where nothing has read the data before."
    seconds = statistics.fmean(read.seconds for read in cold)
    rate = sum(read.storage_bytes for read in cold) / sum(read.seconds for read in cold)
    return (
        f" {len(cold)} of them came from the storage and took {format_seconds(seconds)} each "
        f"({format_seconds(statistics.fmean(read.seconds for read in warm))} from memory): {format_bytes(rate)}/s, "
        f"{format_rate(1 / seconds)} for each worker."
    )
