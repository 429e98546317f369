"""Fault tests: each is marked with the faults it is about, and leaves nothing behind; together they print a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.capabilities import explain_lack
from tests.faults.matrix import Matrix

FOLDER = Path(__file__).parent
MATRIX = pytest.StashKey[Matrix]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-matrix", action="store_true", help="Print what became of each fault.")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MATRIX] = Matrix()
    config.pluginmanager.register(_Notes(config.stash[MATRIX]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all of this folder to `make test-all`."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker("slow")


class _Notes:
    """Enters each finished test into the matrix."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        item.user_properties += [("fault", mark.args[0]) for mark in item.iter_markers("fault")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        faults = [str(value) for name, value in report.user_properties if name == "fault"]
        self._matrix.register(report.nodeid, faults)  # here, since another process may have run the test
        if hasattr(report, "wasxfail") and report.skipped:
            self._matrix.note(report.nodeid, "known", report.wasxfail)
        elif report.skipped:
            self._matrix.note(report.nodeid, "not_run", _read_reason(report))
        elif report.failed:
            self._matrix.note(report.nodeid, "failed", "")
        elif report.when == "call":
            self._matrix.note(report.nodeid, "survived", "")


def _read_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    matrix = config.stash[MATRIX]
    if config.getoption("--fault-matrix", default=False):
        terminalreporter.section("faults")
        lines = list(matrix.list_lines())
    else:
        lines = list(matrix.list_not_run())
        if lines:
            terminalreporter.section("faults that could not be provoked here")
    width = max((len(fault) for fault, _ in lines), default=0)
    for fault, outcome in lines:
        terminalreporter.write_line(f"{fault:<{width}} | {outcome}")


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    """Skip a test that needs what this machine does not allow, with the reason."""
    for mark in request.node.iter_markers("fault"):
        lack = explain_lack(mark.kwargs["needs"])
        if lack is not None:
            pytest.skip(lack)


@pytest.fixture(autouse=True)
def tidy(needs: None, leaves_nothing: None) -> None:
    """Have every fault test prove that nothing is left of it."""
