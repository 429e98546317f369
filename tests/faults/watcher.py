"""Watches from outside what the trials of a run use, with nothing of dltune's own readings."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conftest import SESSION

LOOK_SECONDS = 0.01


class Watcher:
    """Keeps the peaks of all processes of this test session that belong to a trial.

    Processes are read one after another, so a fork in between counts its pages twice: a peak is what two looks in a
    row agree on. The process that forks trials is no part of them: what they share with it counts as its own.

    Attributes:
        host_bytes: Most anonymous memory, shared pages divided among their owners, plus /dev/shm.
        shm_bytes: Most of /dev/shm.
    """

    def __init__(self) -> None:
        self.host_bytes = 0
        self.shm_bytes = 0
        self.looks = 0
        self._shm_before = _read_used(Path("/dev/shm"))
        self._last = (0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            pids = [pid for pid in _list_numbers() if _is_ours(pid)]
            shm = max((self._read_shm(pid) for pid in pids), default=0)
            self._note(shm + sum(_read_anonymous(pid) for pid in pids), shm)
            self.looks += bool(pids)

    def _note(self, host: int, shm: int) -> None:
        self.host_bytes = max(self.host_bytes, min(host, self._last[0]))
        self.shm_bytes = max(self.shm_bytes, min(shm, self._last[1]))
        self._last = (host, shm)

    def _read_shm(self, pid: int) -> int:
        """Read what is used of the /dev/shm that a process sees; of a shared one, what has come since the start."""
        place = Path(f"/proc/{pid}/root/dev/shm")
        with contextlib.suppress(OSError):
            is_shared = place.stat().st_dev == Path("/dev/shm").stat().st_dev
            return max(0, _read_used(place) - (self._shm_before if is_shared else 0))
        return 0


def _list_numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # a hundred times a second


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        inherited = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        names = {entry.partition(b"=")[0] for entry in inherited}
        return b"DLTUNE_TRIAL" in names and f"DLTUNE_TEST_SESSION={SESSION}".encode() in inherited
    return False


def _read_used(place: Path) -> int:
    status = os.statvfs(place)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _read_anonymous(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        sizes = {name: int(size) * 1024 for name, size, *_ in lines}
        return sizes["Pss_Anon:"] - (sizes["Anonymous:"] if _is_server(pid) else 0)
    return 0


def _is_server(pid: int) -> bool:
    """Tell whether a process forks those of trials, which have its command line, but not its parent."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent == os.getpid() and Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0fork\0")
