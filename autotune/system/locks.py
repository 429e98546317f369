"""Keeps two processes from working on one thing at once, by locks that the kernel holds.

Such a lock ends with the process that took it, however that ends, so nobody ever waits for the dead. Its file is only
a name to meet at; it is removed when the lock is let go of.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

RETRY_SECONDS: Final = 0.05
PID_BYTES: Final = 20


class LockedError(Exception):
    """Another process holds the lock.

    Attributes:
        holder: Its number, as it wrote it down; empty when it has not.
    """

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by process {holder or 'unknown'}")
        self.holder = holder


@contextmanager
def hold(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock while the context lasts.

    Where the file system knows no locks, this goes on without one.

    Args:
        path: The file to meet at; made, and removed afterwards.
        seconds: Most seconds to wait for another process to let go of it.

    Raises:
        LockedError: It did not.
        OSError: The file cannot be made.
    """
    path = path.absolute()
    descriptor = _wait_for(path, time.monotonic() + seconds)
    try:
        yield
    finally:
        if _lies_at(path, descriptor):
            with suppress(OSError):
                path.unlink()  # while it is held: whoever has opened it meanwhile sees that it is gone, and starts over
        os.close(descriptor)


def _wait_for(path: Path, deadline: float) -> int:
    """Give the descriptor of the locked file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        is_taken = _take(descriptor)
        if is_taken and _lies_at(path, descriptor):
            _sign(descriptor)
            return descriptor
        holder = _read_holder(descriptor)
        os.close(descriptor)
        if not is_taken and time.monotonic() >= deadline:
            raise LockedError(path, holder)
        time.sleep(RETRY_SECONDS)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # some network file systems have no locks; what they would protect is written in one piece anyway
    return True


def _lies_at(path: Path, descriptor: int) -> bool:
    """Tell whether the file is still the one that others find under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    """Write our number into it, for those who find it locked; a full disk must not keep us from the lock."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())


def _read_holder(descriptor: int) -> str:
    with suppress(OSError):
        text = os.pread(descriptor, PID_BYTES, 0).decode(errors="replace").strip()
        return text if text.isdigit() else ""
    return ""
