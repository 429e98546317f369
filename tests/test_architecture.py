"""Architecture: the direction of imports, and what importing costs."""

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

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "autotune"

HEAVY = ("torch", "optuna", "click", "pydantic", "rich", "numpy", "jinja2", "filelock", "psutil")
OWNERS = {
    "optuna": {"search"},
    "click": {"cli"},
    "rich": {"cli"},
    "numpy": {"search"},
    "jinja2": {"report"},
    "filelock": {"runner", "profiles.store"},
}
PROGRAMS = {"cli", "child"}  # they may print and exit
TRAINING_MODULES = {"profiles.device_prefetch", "online"}  # they import torch in training code
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "core"}


def read_imports(path: Path, *, top_only: bool = False) -> set[str]:
    """Return the packages that a file imports, except those for type checkers only."""
    tree = ast.parse(path.read_text())
    typed = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = {inner for node in typed for inner in ast.walk(node)}
    names: set[str] = set()
    for node in set(tree.body if top_only else ast.walk(tree)) - skipped:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def list_modules() -> dict[str, Path]:
    """Return every module by its path below the package, as in `search.loop`."""
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


def is_within(module: str, places: set[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def test_imports_go_one_way() -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_a_heavy_package_has_one_owner(package: str) -> None:
    users = {module for module, path in list_modules().items() if package in read_imports(path)}
    assert users
    assert {module for module in users if not is_within(module, OWNERS[package])} == set()


def test_only_the_child_and_training_modules_import_torch_at_the_top() -> None:
    users = {module for module, path in list_modules().items() if "torch" in read_imports(path, top_only=True)}
    assert {module for module in users if not is_within(module, {"child", *TRAINING_MODULES})} == set()


def list_heavy_after(statement: str) -> str:
    code = f"{statement}; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import autotune", []),
        ("import autotune.child.supervisor", []),
        ("import autotune.cli.main", ["click"]),
        ("import autotune; autotune.load", ["pydantic"]),
    ],
)
def test_an_import_loads_only_the_packages_that_it_needs(statement: str, heavy: list[str]) -> None:
    assert list_heavy_after(statement) == str(heavy)


@pytest.mark.parametrize(
    ("statement", "package"), [("import autotune; autotune.tune", "torch"), ("import autotune.checking", "optuna")]
)
def test_tuning_leaves_torch_and_checking_leaves_optuna_out_of_the_parent(statement: str, package: str) -> None:
    assert package not in list_heavy_after(statement)


def test_all_public_names_exist_and_every_error_is_public() -> None:
    assert [name for name in autotune.__all__ if getattr(autotune, name, None) is None] == []
    ours = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert ours - set(autotune.__all__) == set()


def test_the_version_is_that_of_the_distribution() -> None:
    assert autotune.__version__ == version("dltune")


def test_only_programs_print_or_exit() -> None:
    for module, path in list_modules().items():
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        if not is_within(module, PROGRAMS):
            assert not calls & {"print", "sys.exit", "exit", "click.echo"}, module


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name for name in list_modules() if set(name.split(".")) & FORBIDDEN_NAMES] == []


def test_no_loop_is_the_first_statement_of_a_try() -> None:
    """Python 3.11 and 3.12 may raise an interrupt in its jump back outside the `try`: the result would be lost."""
    nodes = [(name, node) for name, path in list_modules().items() for node in ast.walk(ast.parse(path.read_text()))]
    assert [name for name, node in nodes if isinstance(node, ast.Try) and isinstance(node.body[0], ast.While)] == []
