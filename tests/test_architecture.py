"""The plan of the house: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import autotune
from autotune import errors
from autotune.cli.export import TARGETS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "autotune"

HEAVY = ("torch", "optuna", "click", "pydantic", "rich", "numpy", "jinja2", "filelock", "psutil")
OWNERS = {
    "optuna": {"search.ask_tell", "search.sampler", "search.storage", "search.study"},
    "click": {"cli", "commands"},
    "rich": {"commands.display", "commands.live_display"},
    "numpy": {"search.coordinates", "search.surrogate"},
    "jinja2": {"report"},
    "filelock": {"runner.scratch", "system.locks"},
}
PROGRAMS = {"cli", "commands", "child.__main__", "child.namespaces"}  # each says what it does at its top
TORCH_ROOMS = {"profiles.batches", "profiles.device_prefetch"}  # beside the child's
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "core"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40


def read_imports(path: Path, *, top_only: bool = False) -> set[str]:
    """List the modules that a file imports, leaving out those for type checkers only."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    nodes = tree.body if top_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def list_rooms() -> dict[str, Path]:
    """Name every module by its path below the package, as in `search.loop`."""
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def is_within(room: str, places: set[str]) -> bool:
    return any(room == place or room.startswith(f"{place}.") for place in places)


def test_imports_go_one_way() -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_a_heavy_package_has_one_owner(package: str) -> None:
    users = {room for room, path in list_rooms().items() if any(n.split(".")[0] == package for n in read_imports(path))}
    assert users
    assert {room for room in users if not is_within(room, OWNERS[package])} == set()


def test_only_the_child_and_what_trains_import_torch_at_their_top() -> None:
    users = {
        room
        for room, path in list_rooms().items()
        if any(name.split(".")[0] == "torch" for name in read_imports(path, top_only=True))
    }
    assert {room for room in users if not is_within(room, {"child"})} == TORCH_ROOMS


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def list_heavy_after(statement: str) -> str:
    return run_python(f"{statement}; import sys; print([name for name in {HEAVY} if name in sys.modules])")


def test_importing_the_package_brings_nothing_along() -> None:
    assert list_heavy_after("import autotune") == "[]"


def test_importing_the_command_line_costs_click_alone() -> None:
    assert list_heavy_after("import autotune.cli") == "['click']"


def test_importing_the_childs_entry_brings_nothing_along() -> None:
    assert list_heavy_after("import autotune.child.__main__") == "[]"


def test_loading_needs_only_pydantic() -> None:
    assert list_heavy_after("import autotune; autotune.load") == "['pydantic']"


def test_tuning_from_python_leaves_torch_out_of_the_parent() -> None:
    assert "torch" not in list_heavy_after("import autotune; autotune.tune")


def test_checking_leaves_optuna_out_until_a_profile_is_measured_again() -> None:
    assert "optuna" not in list_heavy_after("import autotune.checking")


def test_all_public_names_are_there() -> None:
    assert [name for name in autotune.__all__ if getattr(autotune, name, None) is None] == []
    assert sorted(autotune.__all__) == autotune.__all__


def test_every_error_is_public() -> None:
    ours = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert ours - set(autotune.__all__) == set()


def test_the_version_is_that_of_the_distribution() -> None:
    assert autotune.__version__ == version("dltune")


def test_only_programs_print_or_exit() -> None:
    for room, path in list_rooms().items():
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        if not is_within(room, PROGRAMS):
            assert not calls & {"print", "sys.exit", "exit", "click.echo"}, room


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_an_export_stands_in_its_page(target: str) -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    assert any(line.startswith(f"| `{target}` |") for line in page.splitlines())


@pytest.mark.parametrize("room", sorted(list_rooms()))
def test_a_room_is_small_and_called_by_what_it_is_for(room: str) -> None:
    text = list_rooms()[room].read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert not set(room.split(".")) & FORBIDDEN_NAMES
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert [one.name for one in functions if _count_code_lines(one) > MAX_FUNCTION_LINES] == []


def _count_code_lines(node: ast.FunctionDef) -> int:
    docstring = node.body[0] if ast.get_docstring(node) else None
    start = node.body[0].end_lineno if docstring is not None else node.lineno
    return (node.end_lineno or 0) - (start or 0)
