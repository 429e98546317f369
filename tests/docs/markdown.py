"""The pages of the documentation, block by block."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
REASON = re.compile(r"<!-- not run: (.+) -->\s*")
PROMPT = "$ "


class Block(NamedTuple):
    """A block of code on a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str  # why it cannot be run, as the comment before it says; empty where there is none


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def read_page(page: Path) -> str:
    return page.read_text()


@cache
def list_tokens(page: Path) -> tuple[Token, ...]:
    """List the tokens of a page, those inside paragraphs behind them."""
    parsed = MarkdownIt("commonmark").enable("table").parse(read_page(page))
    return tuple(inner for token in parsed for inner in (token, *(token.children or ())))


def list_blocks(page: Path, *languages: str) -> list[Block]:
    """List the blocks of a page in these languages, or all."""
    found, before = [], ""
    for token in list_tokens(page):
        if token.type in {"fence", "code_block"}:
            reason = REASON.fullmatch(before)
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(page, line, token.info, token.content, reason[1] if reason else ""))
        before = token.content if token.type == "html_block" else ""
    return [block for block in found if not languages or block.language in languages]


def list_code_in_sentences(page: Path) -> list[str]:
    return [token.content for token in list_tokens(page) if token.type == "code_inline"]


def list_commands(block: Block) -> Iterator[list[str]]:
    """List the commands of a shell block as words."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
    return (words for line in lines for words in split_command_line(line))


def split_command_line(line: str) -> Iterator[list[str]]:
    """Split a line of shell into its commands, at what stands between them."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command: list[str] = []
    for word in words:
        if set(word) <= set("();<>|&"):
            yield command
            command = []
        else:
            command.append(word)
    yield command
