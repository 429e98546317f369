"""The plan of the house: who may import whom, and what importing costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest

import autotune
from autotune.cli import cli
from autotune.commands.files import COMMANDS, TARGETS
from tests.test_cli import list_options

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "autotune"

FLOORS = (
    {
        "errors",
        "units",
        "channel",
        "worker_setup",
        "workload",
        "isolation",
        "keeper",
        "locks",
        "interrupts",
        "clocks",
        "namesakes",
        "trust",
    },
    {"schema", "request", "messages", "records"},
    {"machine", "importing", "matching", "ruling", "failure_rates", "nvml", "software", "storage"},
    {"limits", "costs", "intervals", "scoring", "process_tree", "verdicts", "noise", "cgroups"},
    {
        "space",
        "watchdog",
        "pacing",
        "profiles",
        "tuned_file",
        "report",
        "convention",
        "planning",
        "view",
        "batches",
        "devices",
        "prefetching",
        "surrogate",
        "advice",
        "containment",
        "gauge",
        "warm_start",
        "naming",
        "comparing",
        "command_line",
        "answer",
        "svg",
        "charts",
        "bars",
        "exhibits",
        "trial_table",
        "timetable",
        "summary",
        "exporting",
    },
    {
        "search",
        "studies",
        "child",
        "trial_runner",
        "loaders",
        "worker_costs",
        "copy_costs",
        "page_copies",
        "sample_errors",
        "shared_files",
        "steps",
        "measure",
        "probe",
        "confirming",
        "doctor",
        "page",
    },
    {"deciding", "exploring", "ablating", "evidence", "outcome", "checking"},
    {"tuning", "rechecking"},
    {"display", "options", "exits", "manual"},
    {"file_commands"},
    {"cli"},
)
OUTSIDE = {"trial_host", "__init__"}  # the child's entry, and the public names, import from any floor
HEAVY = ("torch", "optuna", "click", "pydantic", "rich", "numpy", "jinja2")
OWNERS = {
    "optuna": {"search", "studies"},
    "click": {"cli", "file_commands", "options", "exits"},
    "rich": {"display"},
    "numpy": {"surrogate"},
    "jinja2": {"page"},
}
COMMAND_LINE = {"cli", "file_commands", "exits"}
TORCH_ROOMS = {"batches", "devices", "loaders", "prefetching", "probe", "sample_errors", "steps", "worker_costs"}


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
    return {path.stem: path for path in PACKAGE.glob("*.py")}


def test_every_room_stands_on_a_floor() -> None:
    assert set(list_rooms()) == set().union(*FLOORS) | OUTSIDE


@pytest.mark.parametrize("room", sorted(set().union(*FLOORS)))
def test_imports_go_downward_or_stay_on_the_floor(room: str) -> None:
    floor = next(number for number, rooms in enumerate(FLOORS) if room in rooms)
    below = set().union(*FLOORS[: floor + 1])
    ours = {name.removeprefix("autotune.") for name in read_imports(list_rooms()[room]) if name.startswith("autotune.")}
    assert ours <= below


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_a_heavy_package_has_one_owner(package: str) -> None:
    users = {room for room, path in list_rooms().items() if any(n.split(".")[0] == package for n in read_imports(path))}
    assert users == OWNERS[package]


def test_only_the_childs_rooms_import_torch_at_their_top() -> None:
    users = {
        room
        for room, path in list_rooms().items()
        if any(name.split(".")[0] == "torch" for name in read_imports(path, top_only=True))
    }
    assert users == TORCH_ROOMS


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def list_heavy_after(statement: str) -> str:
    return run_python(f"{statement}; import sys; print([name for name in {HEAVY} if name in sys.modules])")


def test_importing_the_package_brings_nothing_along() -> None:
    assert list_heavy_after("import autotune") == "[]"


def test_importing_the_childs_entry_brings_nothing_along() -> None:
    assert list_heavy_after("import autotune.child.server") == "[]"


def test_loading_needs_only_pydantic() -> None:
    assert list_heavy_after("import autotune; autotune.load") == "['pydantic']"


def test_tuning_from_python_leaves_torch_out_of_the_parent() -> None:
    assert "torch" not in list_heavy_after("import autotune; autotune.tune")


def test_checking_leaves_optuna_out_until_the_workload_is_looked_at() -> None:
    assert "optuna" not in list_heavy_after("import autotune.commands.rechecking")


def test_all_public_names_are_there() -> None:
    assert [name for name in autotune.__all__ if getattr(autotune, name, None) is None] == []
    assert sorted(autotune.__all__) == autotune.__all__


def test_only_the_command_line_prints_or_exits() -> None:
    for room, path in list_rooms().items():
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        if room not in COMMAND_LINE | {"trial_host", "isolation"}:  # programs: each says what it does at its top
            assert not calls & {"print", "sys.exit", "exit", "click.echo"}, room


@pytest.mark.parametrize("option", list_options())
def test_every_option_stands_in_the_readme(option: str) -> None:
    assert f"`{option}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_stands_in_the_readme(command: str) -> None:
    assert f"dltune {command}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_of_a_file_command_stands_in_its_row_of_the_readme(command: click.Command) -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(f"| `dltune {command.name}")]
    assert len(rows) == 1
    options = [max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)]
    assert [option for option in options if f"`{option}" not in rows[0]] == []


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_an_export_stands_in_its_page(target: str) -> None:
    page = (ROOT / "docs" / "exports.md").read_text()
    assert any(line.startswith(f"| `{target}` |") for line in page.splitlines())


def test_no_function_is_longer_than_fifty_lines() -> None:
    long = [
        f"{path.name}:{node.name}"
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and _count_code_lines(node) > 50
    ]
    assert long == []


def _count_code_lines(node: ast.FunctionDef) -> int:
    docstring = node.body[0] if ast.get_docstring(node) else None
    start = node.body[0].end_lineno if docstring is not None else node.lineno
    return (node.end_lineno or 0) - (start or 0)
