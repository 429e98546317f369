"""Keeps two processes from working on one thing at once, by a lock file that tells who holds it and does not stay.

The kernel holds such a lock and ends it with its process, however that ends, so nobody ever waits for the dead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

RETRY_SECONDS: Final = 0.05
NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # as some network file systems answer


class LockedError(Exception):
    """Another process holds the lock; `holder` is its number, or empty where it has not written it down."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by process {holder or 'unknown'}")
        self.holder = holder


@contextmanager
def hold(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock while the context lasts, after waiting so many seconds for another process to let go of it.

    Where the file system knows no locks, this goes on without one: what it would protect is written in one piece.
    Raises LockedError where the other does not let go, and OSError where the file cannot be made.
    """
    signed: list[os.stat_result] = []
    lock = FileLock(
        path, timeout=seconds, poll_interval=RETRY_SECONDS, on_acquired=lambda held: signed.append(_sign(held))
    )
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(path, _read_holder(path)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
    try:
        yield
    finally:
        _remove(path, signed)  # while it is held: whoever has opened it meanwhile sees that it is gone, and starts over
        lock.release()


def _sign(descriptor: int) -> os.stat_result:
    """Write our number down for those who find the file locked; a full disk must not keep us from the lock."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return os.fstat(descriptor)


def _remove(path: Path, signed: list[os.stat_result]) -> None:
    """Remove the file, unless it is that of others who found ours deleted."""
    with suppress(OSError):
        if any(os.path.samestat(ours, path.lstat()) for ours in signed):
            path.unlink()


def _read_holder(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text()
        return text if text.isdigit() else ""
    return ""
