"""The report as Markdown, read with a CommonMark parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autotune.profiles.schema import TunedProfile
from autotune.report.markdown import escape, fence, render_markdown, write_code
from tests.builders import make_full_profile, make_profile, make_profile_result
from tests.report.hostile import HOSTILE, make_hostile_profile

if TYPE_CHECKING:
    from markdown_it.token import Token

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")
TRICKS = f"{HOSTILE} ](https://evil.example) ![x](y) | a | `b` ``c`` \n# heading\n- item\n```\n~~~ *so* _so_ <b>"


def parse(text: str) -> list[Token]:
    """List all pieces of a document, those within others too."""
    tokens = MARKDOWN.parse(text)
    return [piece for token in tokens for piece in (token, *(token.children or ()))]


def list_kinds(text: str) -> set[str]:
    return {piece.type for piece in parse(text)}


def summarize(profile: TunedProfile) -> str:
    return render_markdown(profile, "dltune.json")


def test_the_summary_starts_with_the_answer() -> None:
    lines = summarize(make_full_profile()).splitlines()
    assert lines[0] == "### dltune: 1.80 × the throughput of PyTorch's defaults"
    assert lines[1].startswith("- Throughput: **1,800** samples/s (1,750 to 1,850")


def test_settings_and_what_each_gave_are_tables() -> None:
    text = summarize(make_full_profile())
    assert "| `num_workers` | `0` | `4` |" in text
    assert "| `persistent_workers=True` | 1,800 | 1.33x [1.25-1.41] |" in text
    assert sum(piece.type == "table_open" for piece in parse(text)) == 2


def test_warnings_and_the_command_to_repeat_it_are_there() -> None:
    text = summarize(make_full_profile())
    assert "- The samples differ in size." in text
    blocks = [piece for piece in parse(text) if piece.type == "fence"]
    assert [block.info for block in blocks] == ["python", "sh"]
    assert "--batch-size 32,64" in blocks[1].content


def test_a_profile_without_evidence_has_a_summary_too() -> None:
    text = summarize(make_profile(result=make_profile_result(baseline=None, speedup=None, speedup_ci95=None)))
    assert text.startswith("### dltune: 1,800 samples per second")
    assert sum(piece.type == "table_open" for piece in parse(text)) == 1


def test_hostile_texts_add_nothing_but_text_to_the_document() -> None:
    hostile, plain = summarize(make_hostile_profile()), summarize(make_full_profile())
    assert list_kinds(hostile) <= list_kinds(plain) | {"text_special"}
    htmls = [piece.content.strip() for piece in parse(hostile) if piece.type.startswith("html")]
    assert htmls == [piece.content.strip() for piece in parse(plain) if piece.type.startswith("html")]


@given(st.text(max_size=40) | st.just(TRICKS))
@example(text="12. not a list")
@example(text="3) nor this")
@example(text="# + > = _so_ snake_case_")
@example(text="--- --- ---")
def test_an_escaped_text_is_an_item_of_a_list_that_reads_as_the_text(text: str) -> None:
    document = parse("- word\n- " + escape(text))
    plain = {piece.type for piece in parse("- word")}
    assert {piece.type for piece in document} <= plain | {"text_special"}
    read = "".join(piece.content for piece in document if piece.type in ("text", "text_special"))
    assert read.removeprefix("word").split() == text.replace("\0", "\N{REPLACEMENT CHARACTER}").split()


@pytest.mark.parametrize("text", [TRICKS, "num_workers=4", "`", "``a`", "a|b", "|", " `x` "])
def test_a_code_span_fills_exactly_one_cell(text: str) -> None:
    pieces = parse(f"| a | b |\n| --- | --- |\n| {write_code(text)} | end |")
    assert sum(piece.type == "td_open" for piece in pieces) == 2
    (code,) = [piece.content for piece in pieces if piece.type == "code_inline"]
    assert code.split() == text.split()


@pytest.mark.parametrize("text", ["plain", "```\nout\n```", "`````", TRICKS])
def test_a_block_of_code_ends_where_it_should(text: str) -> None:
    block, after = (piece for piece in parse(fence(text, "sh") + "\n\nafter") if piece.type in ("fence", "text"))
    assert block.content == text + "\n"
    assert after.content == "after"
