"""The table of faults: each has a test, and each outcome is printed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.matrix import ROWS, Matrix


def test_every_fault_has_a_test() -> None:
    files = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    assert set(ROWS) - {node.value for node in nodes if isinstance(node, ast.Constant)} == set()


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ([("survived", "")], "survived"),
        ([("survived", ""), ("failed", "")], "FAILED"),
        ([("not_run", "no cgroup")], "not runnable here: no cgroup"),
        ([("survived", ""), ("not_run", "no cgroup")], "survived; in part not runnable here: no cgroup"),
        ([("survived", ""), ("known", "no next step")], "FAILED as expected: no next step"),
        ([], "not run"),
    ],
)
def test_a_row_prints_the_worst_outcome_first(outcomes: list[tuple[str, str]], words: str) -> None:
    matrix = Matrix()
    for number, (outcome, reason) in enumerate(outcomes):
        matrix.register(f"test {number}", ["Ctrl-C"])
        matrix.note(f"test {number}", outcome, reason)
    assert dict(matrix.list_lines())["Ctrl-C"] == words
    assert [fault for fault, _ in matrix.list_not_run()] == (["Ctrl-C"] if "not runnable" in words else [])


def test_a_fault_that_is_not_in_the_table_is_printed_too() -> None:
    matrix = Matrix()
    matrix.register("test", ["Two runs at once"])
    matrix.note("test", "survived", "")
    assert list(matrix.list_lines())[-1] == ("Two runs at once", "survived")
