"""What does a sample take to read: seconds, bytes, and bytes that the storage had to give?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from autotune.system.kernel_files import PROC, read_numbers

Value = TypeVar("Value")


class SampleRead(NamedTuple):
    """What one sample took."""

    seconds: float
    read_bytes: int = 0  # by read calls, from wherever
    storage_bytes: int = 0  # of them, or of files that are mapped, what was not in memory

    def share(self, samples: int) -> SampleRead:
        """Give what each of so many samples took, that were read together."""
        return SampleRead(self.seconds / samples, self.read_bytes // samples, self.storage_bytes // samples)


def measure_read(read: Callable[[], Value]) -> tuple[Value, SampleRead]:
    """Read a sample, and tell what that took; bytes are 0 where the system does not count them."""
    before = _read_counters()
    began = time.perf_counter()
    value = read()
    seconds = time.perf_counter() - began
    after = _read_counters()
    return value, SampleRead(seconds, after[0] - before[0], after[1] - before[1])


def measure_reads(values: Iterable[Value]) -> Iterator[tuple[Value, SampleRead]]:
    """Go through what is read one after another, with what each took."""
    remaining = iter(values)
    while True:
        try:
            yield measure_read(partial(next, remaining))
        except StopIteration:
            return


def _read_counters() -> tuple[int, int]:
    counts = read_numbers(PROC / "self" / "io")
    return counts.get("rchar:", 0), counts.get("read_bytes:", 0)
