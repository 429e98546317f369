"""The calls in a script that make DataLoaders, under whatever name they go there."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

from autotune.errors import UsageError
from autotune.scripts.names import read_path
from autotune.scripts.source import Script

_LOADER: Final = re.compile(
    r"([A-Z]\w*)?DataLoader|WebLoader|(Neighbor|Node|Link|HGT|Cluster|GraphSAINT\w*)Loader|create_loader"
)  # classes of the libraries that derive theirs from torch's, and timm's function
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_COMPREHENSION: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class LoaderCall:
    """A call that makes a loader.

    Attributes:
        node: The call.
        made: The expression that holds what is wanted of it: the call, or a comprehension that makes several.
        statement: The statement that it stands in.
        scopes: The classes and functions around it, from the outermost.
        target: The name that the loader gets; that of the function that returns it; None where it gets none.
        callee: What is called, as it stands there.
    """

    node: ast.Call
    made: ast.expr
    statement: ast.stmt
    scopes: tuple[Scope, ...]
    target: str | None
    callee: str

    @property
    def line(self) -> int:
        """Where it stands."""
        return self.node.lineno

    @property
    def is_several(self) -> bool:
        """Whether a comprehension makes several at once."""
        return self.made is not self.node

    @property
    def is_training(self) -> bool:
        """Whether its name says that it is the one of the training."""
        return "train" in (self.target or "").lower()

    def describe(self) -> str:
        """Name it in a list."""
        within = ".".join(scope.name for scope in self.scopes)
        names = [self.target or self.callee, *([f"in {within}" if self.target != within else ""] if within else [])]
        return f"line {self.line} ({' '.join(filter(None, names))})"


def find_loaders(script: Script) -> tuple[LoaderCall, ...]:
    """Find them in the order in which they stand there."""
    finder = _Finder(_list_makers(script.tree))
    finder.visit(script.tree)
    return tuple(sorted(finder.found, key=lambda call: (call.line, call.node.col_offset)))


def choose_loader(script: Script, line: int | None = None) -> LoaderCall | None:
    """Choose the one that stands on a line; without one, the only one, or the only one of the training.

    Returns:
        The call; None where several are left to choose from.

    Raises:
        UsageError: There is none, or none on that line.
    """
    found = find_loaders(script)
    if not found:
        raise UsageError(
            f"{script.path} makes no DataLoader. Write a function of the settings that makes what batches come from, "
            "def make_loader(batch_size=64, num_workers=4), and give it: dltune --loader FILE.py:make_loader."
        )
    if line is not None:
        chosen = [call for call in found if call.line <= line <= (call.node.end_lineno or call.line)]
        if not chosen:
            raise UsageError(f"{script.path}, line {line}: no DataLoader is made there, but on {describe_all(found)}.")
        return chosen[-1] if len(chosen) == 1 else next((call for call in chosen if call.line == line), chosen[0])
    training = found if len(found) == 1 else tuple(call for call in found if call.is_training)
    return training[0] if len(training) == 1 else None


def describe_all(calls: tuple[LoaderCall, ...]) -> str:
    """List calls in a sentence."""
    return ", ".join(call.describe() for call in calls)


def _list_makers(tree: ast.Module) -> dict[str, str]:
    """List the names under which loaders are made that do not look like it: aliases, subclasses and partials."""
    makers: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            makers |= {one.asname: one.name for one in node.names if one.asname and _LOADER.fullmatch(one.name)}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name, bases=bases) if any(_is_maker(base, makers) for base in bases):
                makers[name] = name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func, args=[made, *_])) if (
                read_path(func) or ("",)
            )[-1] == "partial" and _is_maker(made, makers):
                makers[name] = name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() as made) if _is_maker(
                made, makers
            ):
                makers[name] = name
    return makers


def _is_maker(node: ast.expr, makers: dict[str, str]) -> bool:
    path = read_path(node)
    return path is not None and (bool(_LOADER.fullmatch(path[-1])) or (len(path) == 1 and path[0] in makers))


class _Finder(ast.NodeVisitor):
    """Goes through a script with what is around."""

    def __init__(self, makers: dict[str, str]) -> None:
        self.found: list[LoaderCall] = []
        self._makers = makers
        self._scopes: list[Scope] = []
        self._statements: list[ast.stmt] = []
        self._around: list[ast.expr] = []

    def visit(self, node: ast.AST) -> None:
        """Go on, with a statement, a scope or an expression more around."""
        if isinstance(node, ast.stmt):
            self._statements.append(node)
            around, self._around = self._around, []
            is_scope = isinstance(node, Scope)
            if isinstance(node, Scope):
                self._scopes.append(node)
            self.generic_visit(node)
            if is_scope:
                self._scopes.pop()
            self._around = around
            self._statements.pop()
            return
        if isinstance(node, ast.Call) and _is_maker(node.func, self._makers):
            self._note(node)
        if isinstance(node, ast.expr):
            self._around.append(node)
            self.generic_visit(node)
            self._around.pop()
        else:
            self.generic_visit(node)

    def _note(self, node: ast.Call) -> None:
        statement, several = (
            self._statements[-1],
            next((x for x in self._around if isinstance(x, _COMPREHENSION)), None),
        )
        made = node if several is None else several
        scopes = tuple(self._scopes)
        target = _find_target(statement, node, made, self._around)
        if target is None and isinstance(statement, ast.Return) and scopes:
            target = scopes[-1].name
        self.found.append(LoaderCall(node, made, statement, scopes, target, ast.unparse(node.func)))


def _find_target(statement: ast.stmt, node: ast.Call, made: ast.expr, around: list[ast.expr]) -> str | None:
    """Find the name that a loader gets: of a variable, an attribute, one of several, or a key."""
    holder = around[-1] if around else None
    if isinstance(holder, ast.Dict):
        keys = [key for key, value in zip(holder.keys, holder.values, strict=True) if value is node]
        return str(keys[0].value) if keys and isinstance(keys[0], ast.Constant) else None
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            pairs = zip(names, values, strict=False)
            return next((_name(name) for name, value in pairs if any(one is node for one in ast.walk(value))), None)
        case ast.Assign(targets=[target, *_]):
            return _name(target)
        case ast.AnnAssign(target=target):
            return _name(target)
    named = next((one for one in around if isinstance(one, ast.NamedExpr) and one.value is made), None)
    return None if named is None else named.target.id


def _name(target: ast.expr) -> str | None:
    path = read_path(target)
    return None if path is None else path[-1]
