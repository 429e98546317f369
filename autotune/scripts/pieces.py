"""What is kept of a script: statements, some of them with only a part of what stands below them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from autotune.scripts.names import Path, Read, list_reads, list_writes

Head = tuple[str | ast.AST, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A statement, or the head of one with what is kept below it.

    Attributes:
        head: Words of ours and nodes of the script, in the order in which they are written.
        reads: What it reads, with what is below.
        writes: What it changes, with what is below.
        body: What is kept below it.
    """

    head: Head
    reads: tuple[Read, ...] = ()
    writes: tuple[Path, ...] = ()
    body: tuple[Piece, ...] = field(default=())

    @property
    def statement(self) -> ast.AST | None:
        """The statement, where it is kept as it is."""
        return self.head[0] if len(self.head) == 1 and isinstance(self.head[0], ast.stmt) else None


def keep_whole(statement: ast.stmt) -> Piece:
    """Keep a statement as it is."""
    below = [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]
    inner = below[:1] if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) else below
    writes = tuple(write.path for node in inner for write in list_writes(node))
    return Piece((statement,), list_reads(statement), writes)


def keep_head(head: Head, body: tuple[Piece, ...], writes: tuple[Path, ...] = ()) -> Piece:
    """Keep the head of a statement with what is kept below it."""
    nodes = [part for part in head if isinstance(part, ast.AST)]
    reads = (*list_reads(*nodes), *(read for piece in body for read in piece.reads))
    return Piece(head, reads, (*writes, *(path for piece in body for path in piece.writes)), body)
