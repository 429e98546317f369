"""The table of faults itself: no fault without a test, and no test whose fate it does not tell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.faults.matrix import ROWS, Matrix

FOLDER = Path(__file__).parent


def list_marked_faults() -> set[str]:
    """List the faults that the tests of this folder say they are about, whether or not they can run here."""
    found: set[str] = set()
    for path in FOLDER.glob("test_*.py"):
        tree = ast.parse(path.read_text())
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
                name = node.args[0]
                found.add(str(name.value) if isinstance(name, ast.Constant) else str(constants[ast.unparse(name)]))
    return found


@pytest.mark.parametrize("fault", ROWS)
def test_every_fault_has_a_test(fault: str) -> None:
    assert fault in list_marked_faults()


def read_row(*outcomes: tuple[str, str]) -> str:
    matrix = Matrix()
    for number, (outcome, reason) in enumerate(outcomes):
        matrix.register(f"test {number}", ["Ctrl-C"])
        matrix.note(f"test {number}", outcome, reason)
    return dict(matrix.list_lines())["Ctrl-C"]


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
def test_a_row_tells_the_worst_first(outcomes: list[tuple[str, str]], words: str) -> None:
    assert read_row(*outcomes) == words


def test_a_fault_that_only_others_know_is_listed_too() -> None:
    matrix = Matrix()
    matrix.register("test", ["Two runs at once"])
    matrix.note("test", "survived", "")
    assert list(matrix.list_lines())[-1] == ("Two runs at once", "survived")
    assert list(matrix.list_not_run()) == []


def test_a_fault_that_cannot_be_provoked_is_listed_by_name() -> None:
    matrix = Matrix()
    matrix.register("test", ["cgroup OOM"])
    matrix.note("test", "not_run", "no memory cgroup that can be written")
    assert list(matrix.list_not_run()) == [("cgroup OOM", "not runnable here: no memory cgroup that can be written")]
