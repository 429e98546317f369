"""Everything of a script that one loader needs, and what of it only the command line tells."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autotune.errors import UsageError
from autotune.scripts.backward import Backward
from autotune.scripts.branches import LookUp
from autotune.scripts.effects import find_effects
from autotune.scripts.finding import LoaderCall, Scope
from autotune.scripts.names import Path, Read, list_parameters, list_reads, list_writes
from autotune.scripts.options import list_options, read_default
from autotune.scripts.pieces import Piece
from autotune.scripts.source import Script

_SETS_UP: Final = ("__init__", "prepare_data", "setup")  # what is called of an object before its loader is asked for


@dataclass(frozen=True, slots=True)
class Slice:
    """What of a script makes one loader.

    Attributes:
        script: The script.
        call: The call that makes it.
        top: What stood at the top of the script.
        body: What stood in functions and methods around the call.
        arguments: What only the command line or a caller tells, as names such as `args.data`.
        borrowed: Names that are imported from the script.
        options: Defaults of the script's options and of the parameters around the call; None where one must be given.
        own: The name of the object whose method makes the loader; None in a function.
        notes: Sentences on what was left out.
    """

    script: Script
    call: LoaderCall
    top: tuple[Piece, ...]
    body: tuple[Piece, ...]
    arguments: tuple[Path, ...]
    borrowed: tuple[str, ...]
    options: dict[str, ast.expr | None]
    own: str | None
    notes: tuple[str, ...]


def slice_script(script: Script, call: LoaderCall) -> Slice:
    """Find what a loader needs.

    Raises:
        UsageError: Something that it needs cannot be copied; the message says on which line, and what to do by hand.
    """
    options = {**_list_parameter_defaults(call.scopes), **list_options(script.tree)}
    borrows = script.module.isidentifier() and not find_effects(script)
    backward = Backward(script.tree, _make_look_up(script.tree, options), options, borrows=borrows)
    own = _find_own_name(call.scopes)
    backward.want(list_reads(call.made))
    body, inner = _keep_scopes(script, backward, call, own)
    top = _keep_top(backward, script, inner if inner is call.statement else None)
    top = [*_list_star_imports(script, backward), *_list_packages(backward), *top]
    _refuse_unknown(script, call, backward)
    _refuse_process_group(script, [*top, *body], call)
    return Slice(
        script=script,
        call=call,
        top=tuple(top),
        body=tuple(body),
        arguments=tuple(sorted(backward.arguments, key=lambda path: backward.arguments[path])),
        borrowed=tuple(sorted({path[0] for path in backward.borrowed})),
        options=options,
        own=own,
        notes=backward.list_notes(),
    )


def _keep_top(backward: Backward, script: Script, until: ast.stmt | None) -> list[Piece]:
    """Keep what is wanted of the top of a script; again, where a function needs what is only defined below it."""
    defined = {one.name for one in script.tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    wanted = dict(backward.wanted)
    while True:
        if until is None:
            top = backward.keep(script.tree.body, at_top=True)
        else:
            top = backward.keep_until(script.tree.body, until)
        below = {path: line for path, line in backward.wanted.items() if path[0] in defined and path not in wanted}
        if not below:
            return top
        wanted |= below
        backward.wanted = dict(wanted)


def _keep_scopes(script: Script, backward: Backward, call: LoaderCall, own: str | None) -> tuple[list[Piece], ast.stmt]:
    """Keep what is wanted of the functions around a call, and of what sets its object up; the innermost first."""
    kept: list[Piece] = []
    inner = call.statement
    for position in reversed(range(len(call.scopes))):
        scope = call.scopes[position]
        if isinstance(scope, ast.ClassDef):
            if own is not None:
                kept[:0] = _keep_set_up(script, backward, scope, call.scopes[position + 1], own)
        else:
            kept[:0] = backward.keep_until(scope.body, inner)
            _take_parameters(backward, scope, own)
        inner = scope
    return kept, inner


def _keep_set_up(script: Script, backward: Backward, cls: ast.ClassDef, asked: Scope, own: str) -> list[Piece]:
    kept: list[Piece] = []
    for name in reversed(_SETS_UP):
        method = next((one for one in cls.body if isinstance(one, ast.FunctionDef) and one.name == name), None)
        if method is not None and method is not asked:
            kept[:0] = backward.keep(method.body)
            _take_parameters(backward, method, own)
    _refuse_methods(script, backward, cls, own)
    made = {path for piece in kept for path in piece.writes}  # in one of several branches, perhaps
    for path in [path for path in backward.wanted if path[0] == own]:
        line = backward.wanted[path]
        if len(path) > 1 and path in made:
            del backward.wanted[path]
            continue
        if len(path) == 1:
            raise UsageError(
                f"{script.path}, line {line}: the loader is made by a method of {cls.name} that needs the whole object."
                f" Name what makes the object instead: def make_loader(): return {cls.name}(...).{asked.name}()"
            )
        backward.take(path, line)
    return kept


def _refuse_methods(script: Script, backward: Backward, cls: ast.ClassDef, own: str) -> None:
    """Refuse methods that are called: what they do cannot be copied in their place."""
    methods = {one.name for one in cls.body if isinstance(one, ast.FunctionDef)}
    for path, line in backward.wanted.items():
        if path[0] == own and len(path) > 1 and path[1] in methods:
            raise UsageError(
                f"{script.path}, line {line}: the loader needs {own}.{path[1]}, a method of {cls.name}. Write "
                f"def make_loader() by hand, which makes the {cls.name} and asks it for its loader, and name that: "
                "dltune --dataset FILE.py:make_loader"
            )


def _take_parameters(backward: Backward, function: Scope, own: str | None) -> None:
    """Take what is wanted of a function's parameters as arguments of the factory."""
    if isinstance(function, ast.ClassDef):
        return
    names = set(list_parameters(function.args)) - {own}
    for path in [path for path in backward.wanted if path[0] in names]:
        backward.take(path, backward.wanted[path])


def _find_own_name(scopes: Sequence[Scope]) -> str | None:
    """Find what a method calls its object: `self`."""
    for outer, inner in itertools.pairwise(scopes):
        if isinstance(outer, ast.ClassDef) and isinstance(inner, ast.FunctionDef):
            is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in inner.decorator_list)
            return None if is_static or not inner.args.args else inner.args.args[0].arg
    return None


def _list_parameter_defaults(scopes: Sequence[Scope]) -> dict[str, ast.expr | None]:
    found: dict[str, ast.expr | None] = {}
    for scope in scopes:
        methods = [scope]
        if isinstance(scope, ast.ClassDef):
            methods = [one for one in scope.body if isinstance(one, ast.FunctionDef) and one.name in _SETS_UP]
        for function in methods:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= _read_parameter_defaults(function.args)
    return found if "stage" in found else {**found, "stage": ast.Constant("fit")}  # of Lightning's setup()


def _read_parameter_defaults(given: ast.arguments) -> dict[str, ast.expr | None]:
    plain = [part.arg for part in (*given.posonlyargs, *given.args)]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    found = dict(zip(plain, [*missing, *given.defaults], strict=True))
    found |= dict(zip((part.arg for part in given.kwonlyargs), given.kw_defaults, strict=True))
    return {name: read_default(value) for name, value in found.items() if value is not None}


def _make_look_up(tree: ast.Module, options: dict[str, ast.expr | None]) -> LookUp:
    """Look a name up: what the script sets it to in one place, else the default of the option of its name."""
    made: dict[Path, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for write in list_writes(node):
                made.setdefault(write.path, []).append(node.value)

    def look_up(path: Path) -> ast.expr | None:
        if path[-1] in options:
            return options[path[-1]]
        found = made.get(path, [])
        return found[0] if len(found) == 1 else None

    return look_up


def _list_star_imports(script: Script, backward: Backward) -> list[Piece]:
    """Keep `from x import *` where something is wanted that nothing else defines."""
    unknown = backward.list_unknown()
    stars = [one for one in script.tree.body if isinstance(one, ast.ImportFrom) and one.names[0].name == "*"]
    if not unknown or not stars:
        return []
    for path in unknown:
        del backward.wanted[path]
    return [Piece((ast.unparse(star),)) for star in stars]


def _list_packages(backward: Backward) -> list[Piece]:
    return [Piece((f"import {name}",), (), ((name,),)) for name in backward.list_packages()]


def _refuse_unknown(script: Script, call: LoaderCall, backward: Backward) -> None:
    for path in backward.list_unknown()[:1]:
        raise UsageError(
            f"{script.path}, line {backward.wanted[path]}: the loader of line {call.line} needs {path[0]}, and the "
            "script does not show where that comes from. Write a function that makes the loader with all it needs, "
            "and name it: dltune --dataset FILE.py:make_loader"
        )


def _refuse_process_group(script: Script, pieces: Sequence[Piece], call: LoaderCall) -> None:
    """Refuse a sampler that shares the data out among processes of which there is one, and no group."""
    nodes = [call.made, *(part for piece in _flatten(pieces) for part in piece.head if isinstance(part, ast.stmt))]
    for node in (inner for one in nodes for inner in ast.walk(one)):
        is_sampler = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("DistributedSampler")
        if is_sampler and isinstance(node, ast.Call) and not any(one.arg == "num_replicas" for one in node.keywords):
            raise UsageError(
                f"{script.path}, line {node.lineno}: a DistributedSampler is made whatever the options say, and it "
                "needs a process group, which trials have not. Write a function that makes the loader with "
                "shuffle=True instead, and name it: with --ranks dltune shares the data out by itself."
            )


def _flatten(pieces: Sequence[Piece]) -> list[Piece]:
    return [inner for piece in pieces for inner in (piece, *_flatten(piece.body))]


def reads_of(pieces: Sequence[Piece]) -> tuple[Read, ...]:
    """List what pieces read."""
    return tuple(read for piece in pieces for read in piece.reads)
