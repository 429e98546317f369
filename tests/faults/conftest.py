"""Fault tests: each is marked with its faults and leaves nothing behind; together they print a table of outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.faults.capabilities import explain_lack

FOLDER = Path(__file__).parent
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
OUTCOMES: Final[dict[str, set[str]]] = {}  # of each fault


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-matrix", action="store_true", help="Print the outcome of each fault.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all of this folder to `make test-all`."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker("slow")
            item.user_properties += [("fault", mark.args[0]) for mark in item.iter_markers("fault")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine does not allow, with the reason."""
    for mark in item.iter_markers("fault"):
        if (lack := explain_lack(mark.kwargs.get("needs"))) is not None:
            pytest.skip(lack)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Store the outcome of a test, which another process may have run."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        outcome = f"not runnable here: {reason.removeprefix('Skipped: ')}"
    elif report.failed or report.when == "call":
        outcome = "FAILED" if report.failed else "survived"
    else:
        return
    for name, fault in report.user_properties:
        if name == "fault":
            OUTCOMES.setdefault(str(fault), set()).add(outcome)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--fault-matrix", default=False):
        terminalreporter.section("faults")
        for fault in (*ROWS, *(name for name in OUTCOMES if name not in ROWS)):
            outcomes = sorted(OUTCOMES.get(fault, {"not run"}))  # failures first
            terminalreporter.write_line(f"{fault:<80} | {'; '.join(outcomes)}")


@pytest.fixture(autouse=True)
def tidy(leaves_nothing: None) -> None:
    """Check after every fault test that nothing is left of it."""
