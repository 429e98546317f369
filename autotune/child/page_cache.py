"""Drops a dataset's files from memory, so that an epoch reads them from the storage, as training on more data does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from autotune.child.sample_reads import measure_read
from autotune.errors import UsageError
from autotune.units import format_bytes

READ_AGAIN_BYTES: Final = 2**20  # of a file that was dropped, to see whether it comes from the storage
MIN_STORAGE_SHARE: Final = 0.5  # of what was read again that must have come from there


class ColdFiles:
    """The files of a dataset, or none, which are to be read from the storage."""

    def __init__(self, place: str | None) -> None:
        self._files = () if place is None else tuple(_list_files(Path(place)))
        self._are_written = False

    def drop(self) -> None:
        """Drop them from memory, as far as the kernel does that; what was just written is written down before."""
        if self._files and not self._are_written:
            os.sync()
            self._are_written = True
        for file in self._files:
            _drop(file)

    def describe(self) -> str | None:
        """Say whether that works here; None where no files are to be dropped."""
        if not self._files:
            return None
        size = format_bytes(sum(map(_measure, self._files)))
        what = f"--cold: {len(self._files):,} files of {size}"
        self.drop()
        if self._come_from_storage():
            return f"{what} are dropped from memory before each epoch, so the throughput is that of the storage"
        return f"{what} could not be dropped from memory here, so the throughput is that of memory"

    def _come_from_storage(self) -> bool:
        largest = max(self._files, key=_measure)
        size, seen = measure_read(lambda: _read_beginning(largest))
        return seen.storage_bytes >= MIN_STORAGE_SHARE * max(1, size)


def _list_files(place: Path) -> Iterator[Path]:
    if not place.exists():
        raise UsageError(f"--cold {place}: no such file or folder. Name the one that the dataset reads.")
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [file for file in found if file.is_file() and not file.is_symlink() and os.access(file, os.R_OK)]
    if not files:
        raise UsageError(f"--cold {place}: there is no file that can be read. Name the folder that the dataset reads.")
    yield from files


def _drop(file: Path) -> None:
    """Drop one; who is gone by now has nothing to drop."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _measure(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def _read_beginning(file: Path) -> int:
    with file.open("rb", buffering=0) as stream:
        return len(stream.read(READ_AGAIN_BYTES))
