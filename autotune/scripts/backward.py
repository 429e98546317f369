"""From what a call reads back to the statements that made it: each block is gone through from its end to its start."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from autotune.scripts.branches import UNKNOWN, LookUp, evaluate
from autotune.scripts.effects import is_guard
from autotune.scripts.names import Path, Read, are_related, list_reads, list_writes
from autotune.scripts.options import gives_settings
from autotune.scripts.pieces import Piece, keep_head, keep_whole

_OF_SEVERAL_PROCESSES: Final = re.compile(r"Distributed|\bdist\.|torch\.distributed|get_rank|xla|xm\.")
_BUILTINS: Final = {*dir(builtins), "__name__", "__file__"}
_BLOCKS: Final = ("body", "orelse", "finalbody")

Options = Mapping[str, ast.expr | None]
Wanted = dict[Path, int]  # names that are still to be found, with the line that reads them


class Backward:
    """Keeps what is wanted of blocks of statements, the last block first.

    Attributes:
        wanted: What is still to be found.
        arguments: What came from the command line, by name.
        borrowed: What is imported from the script.
        imported: Names that are imported anywhere in it.
    """

    def __init__(self, tree: ast.Module, look_up: LookUp, options: Options, *, borrows: bool = False) -> None:
        self.wanted: Wanted = {}
        self.arguments: Wanted = {}
        self.borrowed: Wanted = {}
        self._found: set[str] = set()
        self._left_out: dict[tuple[str, bool], set[int]] = {}
        self._notes: list[str] = []
        self._options = options
        self.imported = list_imported(tree)
        self._tree = tree
        self._look_up = look_up
        self._borrows = borrows

    def want(self, reads: Sequence[Read]) -> None:
        """Look for these names, too."""
        for read in reads:
            self.wanted.setdefault(read.path, read.line)

    def take(self, path: Path, line: int) -> None:
        """Take a name as an argument of the factory, and look for what its default is made of."""
        self.wanted.pop(path, None)
        self.arguments.setdefault(path, line)
        self.want(list_reads(self._options.get(path[-1])))

    def list_unknown(self) -> list[Path]:
        """List what is wanted still and is neither built in nor in a package that is imported."""
        plain = _list_packages(self._tree)
        return [path for path in self.wanted if path[0] not in {*_BUILTINS, *self._found, *plain}]

    def list_packages(self) -> list[str]:
        """List the packages that are imported only by imports of others of their modules."""
        plain = _list_packages(self._tree)
        return sorted({path[0] for path in self.wanted if path[0] in plain} - self._found)

    def keep_until(self, block: list[ast.stmt], statement: ast.stmt) -> list[Piece]:
        """Keep what is wanted of a block before a statement, which may stand in one of its own blocks."""
        for position, one in enumerate(block):
            if one is statement:
                return self.keep(block[:position])
            if any(node is statement for node in ast.walk(one)):
                within = self._enter(one, statement)
                return [*self.keep(block[:position]), *within]
        return []

    def keep(self, block: list[ast.stmt], *, at_top: bool = False) -> list[Piece]:
        """Keep what is wanted of a whole block; at the top of a script that is imported, its names are borrowed."""
        kept: list[Piece] = []
        for statement in reversed(block):
            kept[:0] = self._keep_one(statement, at_top=at_top)
        return kept

    def _enter(self, outer: ast.stmt, statement: ast.stmt) -> list[Piece]:
        """Keep what is wanted of the inside of a statement before another one; of a loop, its first round."""
        blocks = [block for name in _BLOCKS if (block := getattr(outer, name, None))]
        blocks += [handler.body for handler in getattr(outer, "handlers", ())]
        blocks += [case.body for case in getattr(outer, "cases", ())]
        inside = next(block for block in blocks if any(node is statement for one in block for node in ast.walk(one)))
        pieces = self.keep_until(inside, statement)
        if isinstance(outer, ast.For) and self._takes(outer):
            self._notes.append(
                f"Of the loop over {ast.unparse(outer.iter)} (line {outer.lineno}) the first round is taken."
            )
            first = (outer.target, " = next(iter(", outer.iter, "))")
            self._forget(outer)
            self.want(list_reads(outer.iter))
            return [keep_head(first, (), tuple(write.path for write in list_writes(outer))), *pieces]
        if isinstance(outer, ast.With) and self._takes(outer):
            self._forget(outer)
            self.want(list_reads(*outer.items))
            named = [(item.optional_vars, item.context_expr) for item in outer.items if item.optional_vars is not None]
            writes = tuple(write.path for write in list_writes(outer))
            return [*(keep_head((name, " = ", value, ".__enter__()"), (), writes) for name, value in named), *pieces]
        return pieces

    def _keep_one(self, statement: ast.stmt, *, at_top: bool) -> list[Piece]:
        match statement:
            case ast.If():
                return self._keep_if(statement, at_top=at_top)
            case ast.Assign(value=value) | ast.AnnAssign(value=value) if gives_settings(value, self._tree):
                self._take_arguments(statement)
                return []
        if not self._is_wanted(statement):
            return []
        if self._borrows and at_top and not isinstance(statement, ast.Import | ast.ImportFrom):
            self._borrow(statement)
            return []
        match statement:
            case ast.For(target=target, iter=values, body=body):
                return self._keep_loop(statement, ("for ", target, " in ", values, ":"), body)
            case ast.While(test=test, body=body):
                return self._keep_loop(statement, ("while ", test, ":"), body)
            case ast.With(items=items, body=body):
                return self._keep_with(statement, items, body)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return self._keep_import(statement)
        self._forget(statement)
        piece = keep_whole(statement)
        self.want(piece.reads)
        return [piece]

    def _keep_if(self, statement: ast.If, *, at_top: bool) -> list[Piece]:
        if is_guard(statement):
            return self.keep(statement.body)
        decided = evaluate(statement.test, self._look_up)
        if decided is not UNKNOWN:
            left_out = statement.orelse if decided else statement.body
            if any(map(self._is_wanted, left_out)) and _OF_SEVERAL_PROCESSES.search(
                "\n".join(map(ast.unparse, left_out))
            ):
                self._left_out.setdefault((ast.unparse(statement.test), bool(decided)), set()).add(statement.lineno)
                return self.keep(statement.body if decided else statement.orelse, at_top=at_top)
        if not any(self._is_wanted(one) for one in (*statement.body, *statement.orelse)):
            return []
        if self._borrows and at_top:
            self._borrow(statement)
            return []
        after = dict(self.wanted)
        body, before_body = self.keep(statement.body), self.wanted
        self.wanted = after
        orelse, before_else = self.keep(statement.orelse), self.wanted
        if not body and not orelse:
            self.wanted = after
            return []
        self.wanted = {**before_body, **before_else}
        self.want(list_reads(statement.test))
        found = [keep_head(("if ", statement.test, ":"), tuple(body) or (Piece(("pass",)),))]
        if orelse and len(statement.orelse) == 1 and orelse[0].head[0] == "if ":
            return [*found, replace(orelse[0], head=("elif ", *orelse[0].head[1:])), *orelse[1:]]
        return [*found, keep_head(("else:",), tuple(orelse))] if orelse else found

    def list_notes(self) -> tuple[str, ...]:
        """Say in sentences what was left out."""
        branches = (
            f"Left out, since `{test}` is {value} in one process: what shares the data out among several "
            f"({'lines' if len(lines) > 1 else 'line'} {', '.join(map(str, sorted(lines)))})."
            for (test, value), lines in self._left_out.items()
        )
        return (*branches, *dict.fromkeys(self._notes))

    def _keep_loop(
        self, loop: ast.For | ast.While, head: tuple[str | ast.AST, ...], body: list[ast.stmt]
    ) -> list[Piece]:
        after = dict(self.wanted)
        self.keep(body)  # for what a round takes from the one before
        self.wanted = {**after, **self.wanted}
        kept = self.keep(body)
        self._forget(loop)
        self.wanted = {**after, **self.wanted}
        for write in list_writes(loop):
            self.wanted.pop(write.path, None)
        piece = keep_head(head, tuple(kept) or (Piece(("pass",)),), tuple(write.path for write in list_writes(loop)))
        self.want(list_reads(*(part for part in head[1:] if isinstance(part, ast.AST))))
        return [piece]

    def _keep_with(self, statement: ast.With, items: list[ast.withitem], body: list[ast.stmt]) -> list[Piece]:
        kept = self.keep(body)
        self._forget(statement)
        self.want(list_reads(*items))
        head: list[str | ast.AST] = []
        for item in items:
            head += [", " if head else "with ", item.context_expr]
            head += [" as ", item.optional_vars] if item.optional_vars is not None else []
        writes = tuple(write.path for write in list_writes(statement))
        return [keep_head((*head, ":"), tuple(kept) or (Piece(("pass",)),), writes)]

    def _keep_import(self, statement: ast.Import | ast.ImportFrom) -> list[Piece]:
        """Keep of an import what is wanted: of `import torch.utils.data` that, and not `import torch.nn`."""
        kept, paths = [], []
        for alias in statement.names:
            path = (alias.asname,) if alias.asname else tuple(alias.name.split("."))
            if any(are_related(path, wanted) and (len(path) <= len(wanted)) for wanted in self.wanted):
                kept.append(alias)
                paths.append(path[:1])
        if not kept:
            return []
        names = ", ".join(f"{one.name} as {one.asname}" if one.asname else one.name for one in kept)
        source = (
            f"from {'.' * statement.level}{statement.module or ''} " if isinstance(statement, ast.ImportFrom) else ""
        )
        self._found |= {path[0] for path in paths}
        for name in [name for name in self.wanted if name[:1] in paths and not _is_dotted(statement)]:
            del self.wanted[name]
        return [Piece((f"{source}import {names}",), (), tuple(paths))]

    def _take_arguments(self, statement: ast.stmt) -> None:
        """Take what is wanted of a parser's values as arguments of the factory."""
        roots = {write.path[0] for write in list_writes(statement)}
        for path in [path for path in self.wanted if path[0] in roots]:
            self.take(path, self.wanted[path])

    def _borrow(self, statement: ast.stmt) -> None:
        """Leave what a statement makes to the script, from which it is imported."""
        changed = [
            write.path for node in ast.walk(statement) if isinstance(node, ast.stmt) for write in list_writes(node)
        ]
        for path in [path for path in self.wanted if any(path[0] == one[0] for one in changed)]:
            self.borrowed[path] = self.wanted.pop(path)

    def _is_wanted(self, statement: ast.stmt) -> bool:
        nodes = [statement]
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            nodes = [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]
        return any(self._takes(node) for node in nodes)

    def _takes(self, statement: ast.stmt) -> bool:
        """Tell whether it changes by itself what is wanted; a call such as torch.manual_seed() changes no module."""
        writes = [write for write in list_writes(statement) if write.is_whole or write.path[0] not in self.imported]
        return any(are_related(write.path, path) for write in writes for path in self.wanted)

    def _forget(self, statement: ast.stmt) -> None:
        """Look no further for what a statement makes anew."""
        for write in list_writes(statement):
            self._found.add(write.path[0])  # in one of several branches, perhaps
            if write.is_whole:
                for path in [path for path in self.wanted if path[: len(write.path)] == write.path]:
                    del self.wanted[path]


def list_imported(tree: ast.Module) -> set[str]:
    """List the names that are imported anywhere in a script."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return {write.path[0] for node in imports for write in list_writes(node)}


def _list_packages(tree: ast.Module) -> set[str]:
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.name.partition(".")[0] for node in imports for alias in node.names if not alias.asname}


def _is_dotted(statement: ast.Import | ast.ImportFrom) -> bool:
    """Tell whether it is `import a.b`, beside which other imports may add to the same name."""
    return isinstance(statement, ast.Import) and any(not one.asname for one in statement.names)
