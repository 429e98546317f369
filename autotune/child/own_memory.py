"""Gives a forked process the memory that it shares with the one it was forked from.

Such memory is copied when it is written to, a page at a time: that would cost time in the middle of a trial, and until
then the page is on another's account.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from autotune.system.processes import PAGE_BYTES

ENTRY_BYTES: Final = 8  # of /proc/self/pagemap, for each page
PRESENT: Final = 1 << 63
OF_FILE: Final = 1 << 61  # not written to so far; its copy would be memory that a process of its own does not have
MADV_POPULATE_WRITE: Final = 23  # since Linux 5.14; earlier kernels refuse, and copy in their own time

_libc = ctypes.CDLL(None, use_errno=True)


def own_memory() -> None:
    """Copy every page in use that may be written to; what the kernel refuses stays shared."""
    with contextlib.suppress(OSError):
        for start, pages in list(_list_pages_in_use()):
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(pages * PAGE_BYTES), MADV_POPULATE_WRITE)


def _list_pages_in_use() -> Iterator[tuple[int, int]]:
    """List runs of pages, each by its address and length, of the private memory that may be written to."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for start, end in _list_private_ranges():
            pagemap.seek(start // PAGE_BYTES * ENTRY_BYTES)
            entries = array.array("Q", pagemap.read((end - start) // PAGE_BYTES * ENTRY_BYTES))
            place = start
            for is_own, run in groupby(entries, key=lambda entry: entry & (PRESENT | OF_FILE) == PRESENT):
                pages = sum(1 for _ in run)
                if is_own:
                    yield place, pages
                place += pages * PAGE_BYTES


def _list_private_ranges() -> list[tuple[int, int]]:
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, *_ = line.split()
        if permissions == "rw-p":
            start, end = (int(address, 16) for address in addresses.split("-"))
            ranges.append((start, end))
    return ranges
