"""The report as Markdown, read with a CommonMark parser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autotune.report.render import escape, fence, render_markdown
from tests.builders import make_full_profile
from tests.report.hostile import HOSTILE, make_hostile_profile

if TYPE_CHECKING:
    from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")
TRICKS = f"{HOSTILE} ](https://evil.example) ![x](y) | a | `b` ``c@d`` \n# heading\n- item\n```\n~~~ *so* _so_ <b>"
TEXTS = {"text", "text_special", "code_inline"}


def parse(text: str) -> list[Token]:
    """Return all tokens of a document, with those inside others."""
    return [piece for token in MARKDOWN.parse(text) for piece in (token, *(token.children or ()))]


def test_the_headline_comes_first_and_every_section_is_there() -> None:
    text = render_markdown(make_full_profile(), "dltune.json")
    pieces = parse(text)
    assert text.startswith(
        "### dltune: 1.80x faster: 1,000 → 1,800 samples/s\n\n- 1,800 samples/s in training (95% CI 1,750-1,850)"
    )
    assert "- The samples differ in size." in text
    assert "| persistent_workers=True | 1,800 | 0.94x | 0.88-0.99x | estimated by the model |" in text
    assert sum(piece.type == "table_open" for piece in pieces) == 6
    blocks = [piece for piece in pieces if piece.type == "fence"]
    assert [block.info for block in blocks] == ["python", "python"]


def test_hostile_text_adds_nothing_but_text_to_the_document() -> None:
    hostile, plain = (parse(render_markdown(one, "x")) for one in (make_hostile_profile(), make_full_profile()))
    assert {piece.type for piece in hostile} <= {piece.type for piece in plain} | TEXTS
    html = [[piece.content.strip() for piece in pieces if "html" in piece.type] for pieces in (hostile, plain)]
    assert html[0] == html[1]
    linked = [piece.content for piece in hostile if piece.type == "text" and re.search(r"://|www\.", piece.content)]
    assert linked == []


@pytest.mark.parametrize(
    "text", ["https://evil.example", "see WWW.evil.example", "write me@evil.example", "@team", "#12"]
)
def test_text_that_github_links_even_if_it_is_escaped_becomes_code(text: str) -> None:
    shown = [piece for piece in parse(f"- {escape(text)}") if piece.type in TEXTS]
    assert text.endswith(shown[-1].content)
    assert shown[-1].type == "code_inline"


@given(st.text(max_size=40) | st.just(TRICKS))
@example(text="12. not a list")
@example(text="3) nor this")
@example(text="# + > = _so_ snake_case_")
@example(text="--- --- ---")
@example(text="a@b\\ `c@d` |e@f")
def test_escaped_text_is_an_item_of_a_list_that_reads_as_the_text(text: str) -> None:
    document = parse("- word\n- " + escape(text))
    assert {piece.type for piece in document} <= {piece.type for piece in parse("- word")} | TEXTS
    read = "".join(piece.content for piece in document if piece.type in TEXTS)
    assert read.removeprefix("word").split() == text.replace("\0", "\N{REPLACEMENT CHARACTER}").split()


@pytest.mark.parametrize("text", [TRICKS, "num_workers=4", "`", "``a`", "a|b", "|", " `x` ", "a@b|c@d"])
def test_escaped_text_fills_exactly_one_cell_of_a_table(text: str) -> None:
    pieces = parse(f"| a | b |\n| --- | --- |\n| {escape(text)} | end |")
    assert sum(piece.type == "td_open" for piece in pieces) == 2


@pytest.mark.parametrize("text", ["plain", "```\nout\n```", "`````", TRICKS])
def test_a_block_of_code_ends_where_it_should(text: str) -> None:
    block, after = (piece for piece in parse(fence(text, "sh") + "\n\nafter") if piece.type in ("fence", "text"))
    assert block.content == text + "\n"
    assert after.content == "after"
