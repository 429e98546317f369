"""Can a loader be reached by a name of its script, so that no file is needed?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.scripts.effects import find_effects, is_guard
from autotune.scripts.finding import LoaderCall
from autotune.scripts.names import read_path
from autotune.scripts.options import list_options
from autotune.scripts.source import Script


@dataclass(frozen=True, slots=True)
class Reached:
    """How a loader is reached.

    Attributes:
        name: The name in the script: of the loader, of the function that returns it, or of its data module.
        missing: Arguments that must be given.
        split: Which one it is of several that the function returns.
    """

    name: str
    missing: tuple[str, ...] = ()
    split: str | None = None


def reach(script: Script, call: LoaderCall) -> Reached | None:
    """Find the name by which a loader is reached; None where importing the script would train, or there is no name."""
    if find_effects(script) or call.is_several:
        return None
    match call.scopes:
        case ():
            is_plain = call.target is not None and _stands_at_top(script.tree.body, call.statement)
            return Reached(call.target) if call.target is not None and is_plain else None
        case (ast.FunctionDef() as function,):
            return _reach_function(script, call, function)
        case (ast.ClassDef() as cls, ast.FunctionDef(name="train_dataloader")):
            is_module = any((read_path(base) or ("",))[-1].endswith("DataModule") for base in cls.bases)
            return Reached(cls.name, _list_missing(_find_init(cls), 1)) if is_module else None
    return None


def _stands_at_top(block: list[ast.stmt], statement: ast.stmt) -> bool:
    return any(
        one is statement
        or (
            isinstance(one, ast.If | ast.Try | ast.With)
            and not is_guard(one)
            and any(node is statement for node in ast.walk(one))
        )
        for one in block
    ) and isinstance(statement, ast.Assign | ast.AnnAssign)


def _reach_function(script: Script, call: LoaderCall, function: ast.FunctionDef) -> Reached | None:
    """Reach what a function returns, unless it takes the options of the command line as a whole."""
    options, parameters = list_options(script.tree), {part.arg for part in function.args.args}
    for node in ast.walk(function):
        path = read_path(node) if isinstance(node, ast.Attribute) else None
        if path is not None and path[0] in parameters and path[1] in options:
            return None
    if function.args.vararg is not None or function.decorator_list:
        return None
    for returned in _list_returned(function):
        parts = returned.elts if isinstance(returned, ast.Tuple | ast.List) else [returned]
        for position, part in enumerate(parts):
            if part is call.node or (isinstance(part, ast.Name) and part.id == call.target):
                split = str(position) if len(parts) > 1 else None
                return Reached(function.name, _list_missing(function), split)
    return None


def _list_returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _find_init(cls: ast.ClassDef) -> ast.FunctionDef | None:
    return next((one for one in cls.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)


def _list_missing(function: ast.FunctionDef | None, first: int = 0) -> tuple[str, ...]:
    """List the parameters without a default, from the first that a caller gives."""
    if function is None:
        return ()
    given = function.args
    plain = [part.arg for part in (*given.posonlyargs, *given.args)]
    alone = [part.arg for part, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return (*plain[first : len(plain) - len(given.defaults)], *alone)
