"""The faults that dltune must survive, and the table of their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

ROWS: Final = (
    "Worker SIGKILL (OOM-like)",
    "Worker SEGV / ABRT",
    "Worker `os._exit(3)` / `sys.exit(7)`",
    "Worker exits 0, or KeyboardInterrupt in getitem",
    "Exception in getitem",
    "Odd exception constructor",
    "Exception class not importable",
    "Batch unpicklable",
    "Hung getitem",
    "StopIteration in map dataset",
    "`__getitems__` of the wrong length",
    "Iterable that is not sharded",
    "Epoch that ends early",
    "Batch needs grad",
    "Ragged / None / object",
    "Empty / 0 batches / infinite iterable",
    "Unpicklable dataset, spawn",
    "Factory loaded via `spec_from_file_location`",
    "shm full, default collate",
    "shm full, custom collate",
    "shm inodes exhausted",
    "/dev/shm read-only",
    "Real SIGBUS",
    "fd exhaustion",
    "TMPDIR ≥ 80 chars",
    "cgroup OOM",
    "RLIMIT_AS",
    "CoW growth",
    "Fork + held lock",
    "Fork after OpenMP",
    "Fork after a library's threads",
    "Loader inside daemonic process",
    "Supervisor SIGKILL",
    "SIGTERM trial main only",
    "Ctrl-C",
    "Factory raises / missing import / SyntaxError / RecursionError / `sys.exit(0)`",
    "Factory `os._exit(0)` / closes all fds",
    "Factory prints junk, fake JSON, 100 MB",
    "Non-daemon thread, `atexit` sleep, ignored SIGTERM",
    "Factory forks a child",
    "Factory kills group / parent",
    "Leaks, file_system",
    "Leaks, spawn/forkserver",
    "Output disk full",
    "CUDA OOM / pinned failure",
)


@dataclass
class Row:
    """The outcomes of the tests of one fault; reasons of those that failed as expected, and that could not run here."""

    survived: int = 0
    failed: int = 0
    known: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Return a few words, the worst first."""
        words = ["FAILED"] if self.failed else []
        words += [f"FAILED as expected: {reason}" for reason in dict.fromkeys(self.known)]
        words += [] if self.failed or self.known or not self.survived else ["survived"]
        missing = "in part not runnable here" if self.survived else "not runnable here"
        words += [f"{missing}: {reason}" for reason in dict.fromkeys(self.not_run)]
        return "; ".join(words) or "not run"


class Matrix:
    """Collects the outcomes of the tests of each fault."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._faults: dict[str, tuple[str, ...]] = {}

    def register(self, test: str, faults: Iterable[str]) -> None:
        """Store the faults of a test, which is given by its node id."""
        self._faults[test] = tuple(faults)

    def note(self, test: str, outcome: str, reason: str) -> None:
        """Store an outcome: `survived`, `failed`, or with a reason `known` (expected to fail) or `not_run`."""
        for fault in self._faults.get(test, ()):
            row = self._rows.setdefault(fault, Row())
            if outcome in ("known", "not_run"):
                getattr(row, outcome).append(reason)
            else:
                setattr(row, outcome, getattr(row, outcome) + 1)

    def list_lines(self) -> Iterator[tuple[str, str]]:
        """Yield each fault and its outcome, in the order of `ROWS`, others after them."""
        for fault in (*ROWS, *(name for name in self._rows if name not in ROWS)):
            yield fault, self._rows.get(fault, Row()).describe()

    def list_not_run(self) -> Iterator[tuple[str, str]]:
        """Yield each fault that could not be provoked here, with the reason."""
        return ((fault, row.describe()) for fault, row in self._rows.items() if row.not_run)
