"""Writes pieces of a script as they stood there, with other words for what only the command line told."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from autotune.scripts.names import Path, list_parameters, read_path
from autotune.scripts.pieces import Piece

INDENT = "    "


class Renderer:
    """Writes parts of one script.

    Attributes:
        words: What is written for a name.
        own: Name of an object whose attributes are written as plain names; None for none.
    """

    def __init__(self, text: str, words: Mapping[Path, str], own: str | None) -> None:
        self._lines = [line.encode() for line in text.splitlines(keepends=True)]
        self._words = words
        self._own = own

    def write_pieces(self, pieces: Sequence[Piece], indent: str = "") -> Iterator[str]:
        """Write pieces line by line; one that would set a name to itself is left out."""
        for piece in pieces:
            text = "".join(part if isinstance(part, str) else self.write(part, len(indent)) for part in piece.head)
            left, _, right = text.partition(" = ")
            if left == right:
                continue
            yield from f"{indent}{text}".split("\n")
            yield from self.write_pieces(piece.body, indent + INDENT)

    def write(self, node: ast.AST, column: int = 0) -> str:
        """Write a node, whose first line will stand in this column."""
        changed = list(self._find_changes(node))
        if not hasattr(node, "lineno") or self._may_not_move(node, changed):
            rewritten = _Rewriter(self._word).visit(copy.deepcopy(node))
            return textwrap.indent(ast.unparse(rewritten), " " * column).lstrip()
        start, end = _place(node)
        first = min([start[0], *(one.lineno for one in getattr(node, "decorator_list", ()))])
        if first < start[0]:
            start = (first, len(self._lines[first - 1]) - len(self._lines[first - 1].lstrip()))
        written, at = b"", start
        for part, words in changed:
            begin, until = _place(part)
            written += self._cut(at, begin) + words.encode()
            at = until
        text = (written + self._cut(at, end)).decode()
        line = self._lines[start[0] - 1]
        return _move(text, len(line) - len(line.lstrip(b" \t")), column)

    def _cut(self, start: tuple[int, int], end: tuple[int, int]) -> bytes:
        if start[0] == end[0]:
            return self._lines[start[0] - 1][start[1] : end[1]]
        middle = b"".join(self._lines[start[0] : end[0] - 1])
        return self._lines[start[0] - 1][start[1] :] + middle + self._lines[end[0] - 1][: end[1]]

    def _word(self, node: ast.AST, bound: Set[str]) -> str | None:
        """Give what is written in place of a name; None for itself, as where a function around it binds that name."""
        path = read_path(node)
        if path is None or path[0] in bound:
            return None
        if path in self._words:
            return self._words[path]
        return path[1] if len(path) == 2 and path[0] == self._own else None

    def _find_changes(self, node: ast.AST, bound: Set[str] = frozenset()) -> Iterator[tuple[ast.AST, str]]:
        """Find what is written in other words, in the order in which it stands there."""
        if (word := self._word(node, bound)) is not None:
            yield node, word
            return
        inner = bound | _list_bound(node)
        found = [change for child in ast.iter_child_nodes(node) for change in self._find_changes(child, inner)]
        yield from sorted(found, key=lambda change: _place(change[0]))

    def _may_not_move(self, node: ast.AST, changed: Sequence[tuple[ast.AST, str]]) -> bool:
        """Tell whether a text of several lines would be changed by an indent, or has places that are not told."""
        inner = list(ast.walk(node))
        if any(isinstance(one, ast.Constant | ast.JoinedStr) and _is_long(one) for one in inner):
            return True
        return bool(changed) and any(isinstance(one, ast.JoinedStr) for one in inner)


class _Rewriter(ast.NodeTransformer):
    """Puts words in place of names, but for those that a function around them binds."""

    def __init__(self, word: Callable[[ast.AST, Set[str]], str | None]) -> None:
        self._word = word
        self._bound: Set[str] = frozenset()

    def visit(self, node: ast.AST) -> ast.AST:
        if (word := self._word(node, self._bound)) is not None:
            return ast.Name(word)
        around, self._bound = self._bound, self._bound | _list_bound(node)
        changed: ast.AST = self.generic_visit(node)
        self._bound = around
        return changed


def _list_bound(node: ast.AST) -> frozenset[str]:
    """List the parameters of a function."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return frozenset(list_parameters(node.args))
    return frozenset()


def _place(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    assert isinstance(node, ast.stmt | ast.expr)
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _is_long(node: ast.Constant | ast.JoinedStr) -> bool:
    is_text = isinstance(node, ast.JoinedStr) or isinstance(node.value, str | bytes)
    return is_text and node.end_lineno != node.lineno


def _move(text: str, start: int, column: int) -> str:
    """Shift the lines after the first one from one column to another."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(_shift(line, column - start) for line in rest)])


def _shift(line: str, by: int) -> str:
    if not line.strip():
        return ""
    line = line.expandtabs(8) if "\t" in line[: len(line) - len(line.lstrip())] else line
    return " " * by + line if by >= 0 else line[min(-by, len(line) - len(line.lstrip())) :]
