"""Which names does a piece of code read, and which does it change?

A name is a path: `("args", "batch_size")` for `args.batch_size` or `args["batch_size"]`.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

Path = tuple[str, ...]
_CHANGERS: Final = {"shuffle", "setattr"}  # functions that change what they are given
_WATCHERS: Final = {"parse_args", "parse_known_args", "save_hyperparameters"}  # methods that change no data


class Read(NamedTuple):
    """A name that is read, and the line."""

    path: Path
    line: int


class Write(NamedTuple):
    """A name that is changed; `is_whole` where what it was before is of no matter any more."""

    path: Path
    is_whole: bool


def read_path(node: ast.AST) -> Path | None:
    """Read a chain of names, attributes and literal keys; None where it is none."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=value, attr=name) | ast.Subscript(value=value, slice=ast.Constant(value=str(name))):
            base = read_path(value)
            return None if base is None or not name.isidentifier() else (*base, name)
    return None


def are_related(one: Path, other: Path) -> bool:
    """Tell whether one is the other or a part of it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def list_reads(*nodes: ast.AST | None) -> tuple[Read, ...]:
    """List the names that code reads from outside of itself: what a function or comprehension binds is its own."""
    reader = _Reader()
    for node in nodes:
        if node is not None:
            reader.visit(node)
    return tuple(reader.found)


def list_writes(statement: ast.stmt) -> tuple[Write, ...]:
    """List the names that a statement changes by itself; those that statements within it change are theirs."""
    return tuple(_find_writes(statement))


def _find_writes(statement: ast.stmt) -> Iterator[Write]:
    match statement:
        case ast.Assign(targets=targets):
            yield from itertools.chain.from_iterable(map(_list_targets, targets))
        case ast.AnnAssign(target=target, value=ast.expr()):
            yield from _list_targets(target)
        case ast.AugAssign(target=target):
            yield from (write._replace(is_whole=False) for write in _list_targets(target))
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _list_targets(target)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            named = (item.optional_vars for item in items if item.optional_vars is not None)
            yield from itertools.chain.from_iterable(map(_list_targets, named))
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield Write((name,), is_whole=True)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (Write(((one.asname or one.name).partition(".")[0],), is_whole=True) for one in names)
        case ast.Expr(value=ast.Call(func=func, args=args)):
            yield from _list_changed_by_call(func, args)
    if isinstance(statement, ast.Assign | ast.Expr | ast.If | ast.Return):
        yield from (Write((node.target.id,), is_whole=True) for node in _find_walruses(statement))


def _find_walruses(statement: ast.stmt) -> Iterator[ast.NamedExpr]:
    parts = (statement.test,) if isinstance(statement, ast.If) else (statement,)
    return (node for part in parts for node in ast.walk(part) if isinstance(node, ast.NamedExpr))


def _list_targets(target: ast.expr) -> Iterator[Write]:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _list_targets(part)
        case ast.Starred(value=value):
            yield from _list_targets(value)
        case _:
            if (path := read_path(target)) is not None:
                yield Write(path, is_whole=True)
            elif (base := _find_base(target)) is not None:
                yield Write(base, is_whole=False)


def _find_base(target: ast.expr) -> Path | None:
    """Find what `rows[i].x = 1` changes."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
        if (path := read_path(target)) is not None:
            return path
    return None


def _list_changed_by_call(func: ast.expr, args: list[ast.expr]) -> Iterator[Write]:
    """List what a call may change whose value is of no matter: the object of a method, or what is shuffled."""
    path = read_path(func)
    if path is not None and path[-1] in _CHANGERS:
        yield from (Write(found, is_whole=False) for arg in args if (found := read_path(arg)) is not None)
    elif path is not None and len(path) > 1 and path[-1] not in _WATCHERS:
        yield Write(path[:-1], is_whole=False)


class _Reader(ast.NodeVisitor):
    """Collects the outermost chains that are read, without the names that inner scopes bind."""

    def __init__(self) -> None:
        self.found: list[Read] = []
        self._bound: list[set[str]] = []

    def _note(self, path: Path, node: ast.expr) -> None:
        if not any(path[0] in names for names in self._bound):
            self.found.append(Read(path, node.lineno))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._note((node.id,), node)

    def visit_Attribute(self, node: ast.Attribute | ast.Subscript) -> None:
        path = read_path(node)
        if path is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self._note(path, node)

    visit_Subscript = visit_Attribute  # noqa: N815  # as ast calls it

    def visit_Call(self, node: ast.Call) -> None:
        path = read_path(node.func)
        if path is not None and len(path) > 1 and isinstance(node.func, ast.Attribute):
            self._note(path[:-1] if _is_object(path) else path, node.func)
        else:
            self.visit(node.func)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if (path := read_path(node.target)) is not None:
            self._note(path, node.target)
        self.generic_visit(node)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        self._bound.append(_list_stored(ast.walk(node)))
        self.generic_visit(node)
        self._bound.pop()

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._bound.append(set(list_parameters(node.args)))
        self.visit(node.body)
        self._bound.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, *((node.returns,) if node.returns else ())):
            self.visit(part)
        self._bound.append({*list_parameters(node.args), *_list_bound(node.body)})
        for statement in node.body:
            self.visit(statement)
        self._bound.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        own = {write.path[0] for statement in node.body for write in list_writes(statement)}
        for statement in node.body:
            is_function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            self._bound.append(set() if is_function else own)  # methods do not see what their class binds
            self.visit(statement)
            self._bound.pop()


def _is_object(path: Path) -> bool:
    """Tell `args.data.lower` from `torch.utils.data.DataLoader`: the latter ends with a class or stands in a module."""
    return not path[-1][:1].isupper()


def list_parameters(arguments: ast.arguments) -> list[str]:
    """List the parameters of a function by name."""
    parts = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return [part.arg for part in parts if part is not None]


def _list_stored(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _list_bound(body: list[ast.stmt]) -> set[str]:
    """List the names that a function binds, except those that it declares to be of outside."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    outer = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    defined = {
        write.path[0]
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
        for write in list_writes(node)
    }
    handlers = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    return (_list_stored(nodes) | defined | handlers) - outer
