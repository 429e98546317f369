"""A script as it is read: its text and its tree, or the sentence that says why there is none."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.errors import UsageError
from autotune.scripts.places import suggest_file

MAX_BYTES: Final = 5_000_000  # no script that somebody wrote is that long
MAX_NESTING: Final = 200  # levels of the tree, each of which takes up to four of Python's frames to be visited


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was read.

    Attributes:
        path: Where it lies, as the user named it.
        text: What stands there.
        tree: The same, parsed.
    """

    path: Path
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The name that it has as a module, from its own folder."""
        return self.path.stem


def read_script(path: Path) -> Script:
    """Read and parse a script, without running any of it.

    Raises:
        UsageError: There is no such file, or it is no Python that this interpreter knows.
    """
    if path.suffix == ".ipynb":
        raise UsageError(
            f"{path} is a notebook. Make a script of it (jupyter nbconvert --to script {path.name}), or put what makes "
            "the loader into a file by a cell that begins with %%writefile loaders.py."
        )
    text = _read_text(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that strings should not have
            tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{path}, line {error.lineno or 1}: no Python of this version ({error.msg}).") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} cannot be parsed: {error or type(error).__name__}.") from None
    if _is_deep(tree):
        raise UsageError(f"{path} is nested more than {MAX_NESTING} levels deep: write the factory by hand.")
    return Script(path, text, tree)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} has more than {MAX_BYTES:,} bytes: that is no script.")
        with tokenize.open(path) as file:  # in the encoding that its first lines name
            return file.read()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file in {Path.cwd()}.{suggest_file(path)}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise UsageError(f"{path} is no text in the encoding that it names, or UTF-8.") from None


def _is_deep(tree: ast.Module) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTING):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
