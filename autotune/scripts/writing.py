"""The factory module: what of a script makes one loader, as a function of what only the command line told."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from autotune.errors import UsageError
from autotune.scripts.names import Path, list_reads, read_path
from autotune.scripts.pieces import Piece
from autotune.scripts.rendering import INDENT, Renderer
from autotune.scripts.slicing import Slice, reads_of

FACTORY: Final = "make_loader"
WIDTH: Final = 100  # of a signature; longer ones get a line for each parameter


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of the factory.

    Attributes:
        name: What it is called there.
        default: What it is where it is not given, as it is written; None where it must be given.
        of: What it was called in the script.
    """

    name: str
    default: str | None
    of: str


@dataclass(frozen=True, slots=True)
class Factory:
    """A factory module.

    Attributes:
        text: What is written.
        parameters: The arguments of its function.
        makes_several: Whether that returns several loaders by name.
        notes: Sentences on what was left out.
    """

    text: str
    parameters: tuple[Parameter, ...]
    makes_several: bool
    notes: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """The arguments that must be given."""
        return tuple(one.name for one in self.parameters if one.default is None)

    @property
    def left_open(self) -> tuple[str, ...]:
        """The arguments that are None in the script where they are not given."""
        return tuple(one.name for one in self.parameters if one.default == "None")


def write_factory(found: Slice) -> Factory:
    """Write the module; raises UsageError where what was found cannot be put together."""
    spaces = _find_namespaces(found)
    names = _name_arguments(found, spaces)
    renderer = Renderer(found.script.text, names, found.own)
    parameters = _list_parameters(found, names, renderer)
    head, moved = _part(found, {path[0] for path in found.arguments} | {found.own or ""})
    body = [f"{INDENT}{space} = SimpleNamespace({_assign(attributes)})" for space, attributes in spaces.items()]
    body += renderer.write_pieces([*moved, *found.body], INDENT)
    body += [f"{INDENT}return {renderer.write(found.call.made, len(INDENT))}"]
    lines = [_write_docstring(found), "", *_write_head(found, head, renderer, bool(spaces)), "", ""]
    text = "\n".join([*lines, *_write_signature(parameters), *body]) + "\n"
    try:
        compile(text, "factory", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{found.script.path}, line {found.call.line}: what makes this loader cannot be put into a function "
            f"({error}). Write def make_loader() by hand, and name it: dltune --dataset FILE.py:make_loader"
        ) from None
    return Factory(text, parameters, found.call.is_several, found.notes)


def _find_namespaces(found: Slice) -> dict[str, list[str]]:
    """Find the arguments that are needed as a whole, and hold options; with those options that may be read of them."""
    whole = [path[0] for path in found.arguments if len(path) == 1 and path[0] not in found.options]
    inner = _list_attributes(found.script.tree)
    spaces = {}
    for root in whole:
        known = {path[1] for path in inner if path[0] == root and len(path) > 1 and path[1] in found.options}
        if known:
            own = {path[1] for path in found.arguments if len(path) > 1 and path[0] == root}
            used = own | (_list_read_options(found) or known)
            spaces[root] = [name for name in found.options if name in used]
    return spaces


def _list_attributes(tree: ast.Module) -> set[Path]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {path for node in nodes if (path := read_path(node)) is not None}


def _list_read_options(found: Slice) -> set[str]:
    """List the options that functions and classes of the script read, as far as the loader needs those."""
    defined = {one.name: one for one in found.script.tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    names = {*found.borrowed, *(read.path[0] for read in reads_of([*found.top, *found.body]))}
    names |= {read.path[0] for read in list_reads(found.call.made)}
    reached: set[str] = set()
    while new := {name for name in names if name in defined} - reached:
        reached |= new
        names |= {read.path[0] for name in new for read in list_reads(defined[name])}
    nodes = (node for name in reached for node in ast.walk(defined[name]))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr in found.options}


def _name_arguments(found: Slice, spaces: dict[str, list[str]]) -> dict[Path, str]:
    """Give each argument that is a part of something a name of its own."""
    whole = {path[0] for path in found.arguments if len(path) == 1}
    taken = {path[0] for piece in (*found.top, *found.body) for path in piece.writes if len(path) == 1}
    taken |= {*found.borrowed, *whole, *(name for names in spaces.values() for name in names)}
    names: dict[Path, str] = {}
    for path in found.arguments:
        if len(path) == 1 or path[0] in whole:
            continue
        name = path[-1] if path[0] == found.own else "_".join(path[1:])
        name = f"{path[0]}_{name}" if name in taken and path[0] != found.own else name
        names[path] = name
        taken.add(name)
    return names


def _list_parameters(found: Slice, names: dict[Path, str], renderer: Renderer) -> tuple[Parameter, ...]:
    spaces = _find_namespaces(found)
    parameters: dict[str, Parameter] = {}
    for path in found.arguments:
        parts = [(path[0], name) for name in spaces[path[0]]] if len(path) == 1 and path[0] in spaces else [path]
        for part in parts:
            name = names.get(part, part[-1])
            default = found.options.get(part[-1])
            written = None if default is None else renderer.write(default)
            parameters.setdefault(name, Parameter(name, written, ".".join(part)))
    return tuple(sorted(parameters.values(), key=lambda one: one.default is not None))


def _part(found: Slice, told: set[str]) -> tuple[list[Piece], list[Piece]]:
    """Part what stood at the top into what may stand there again, and what is made when the factory is called."""
    head, moved = list(found.top), list[Piece]()
    late, pinned = set(told), _list_made_for_defaults(found)
    while True:
        new = [
            piece
            for piece in head
            if late & {read.path[0] for read in piece.reads} or not (piece in pinned or _may_stand_at_top(piece))
        ]
        if not new:
            return head, moved
        moved = [piece for piece in found.top if piece in new or piece in moved]
        head = [piece for piece in head if piece not in new]
        late |= {path[0] for piece in moved for path in piece.writes}


def _list_made_for_defaults(found: Slice) -> list[Piece]:
    """List what makes the names that defaults of the factory's arguments read, which is where it is defined."""
    defaults = [found.options.get(path[-1]) for path in found.arguments]
    names = {read.path[0] for read in list_reads(*defaults)}
    pinned: list[Piece] = []
    while new := [one for one in found.top if one not in pinned and names & {path[0] for path in one.writes}]:
        pinned += new
        names |= {read.path[0] for read in reads_of(new)}
    return pinned


def _may_stand_at_top(piece: Piece) -> bool:
    """Tell whether it only imports, defines, or names a constant."""
    match piece.statement:
        case None:
            return isinstance(piece.head[0], str) and "import " in piece.head[0]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Try():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return not any(isinstance(node, ast.Call) for node in ast.walk(value))
    return False


def _write_docstring(found: Slice) -> str:
    target = f" ({found.call.target})" if found.call.target else ""
    lines = [f'"""The loader of {found.script.path.name}, line {found.call.line}{target}; written by `dltune init`.']
    lines += ["", *(line for note in found.notes for line in textwrap.wrap(note, WIDTH))] if found.notes else []
    text = "\n".join(lines).replace("\\", "\\\\")
    return text + ('\n"""' if found.notes else '"""')


def _write_head(found: Slice, head: Sequence[Piece], renderer: Renderer, needs_namespace: bool) -> list[str]:
    future = [one for one in found.script.tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    imports = [piece for piece in head if piece.statement is None]
    rest = [piece for piece in head if piece.statement is not None]
    lines = [line for one in future for line in (ast.unparse(one), "")]
    lines += ["from types import SimpleNamespace"] if needs_namespace else []
    lines += list(dict.fromkeys(renderer.write_pieces(imports)))
    if found.borrowed:
        lines += ["", f"from {found.script.module} import {', '.join(found.borrowed)}"]
    for piece in rest:
        is_long = isinstance(piece.statement, ast.FunctionDef | ast.ClassDef)
        lines += [*([""] * (2 if is_long else 1)), *renderer.write_pieces([piece])]
    return lines


def _write_signature(parameters: Sequence[Parameter]) -> list[str]:
    written = [one.name if one.default is None else f"{one.name}={one.default}" for one in parameters]
    line = f"def {FACTORY}({', '.join(written)}):"
    if len(line) <= WIDTH:
        return [line]
    return [f"def {FACTORY}(", *(f"{INDENT}{one}," for one in written), "):"]


def _assign(names: Sequence[str]) -> str:
    return ", ".join(f"{name}={name}" for name in names)
