"""The package, its output and its documentation use the words of PyTorch, Optuna and benchmarking."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, name_page

FORBIDDEN = re.compile(
    r"""(?ix) \b(
    told | tells | stands | standstill | beside | by \s itself | anew | afresh | in \s turn | likewise | held \s against
    | mend(s|ed|ing)? | seldom | spared? | rooms? | wings? | keepers? | autops\w+ | witness\w* | sittings? | siblings?
    | departures? | doubt\w* | hope(s|less)? | knobs? | promis\w+ | ceilings? | bound \s by | finalists? | contestants?
    | entrants? | rivals? | settle[sd]? | taken \s down | interleaved | verdict | answers? | in \s vain | struck
    | whoever | without \s a \s word | whatever | nobody | gone | by \s hand | beyond \s noise | taint\w* | adopt\w*
    | pays | harms?
    )\b"""
)
LOOSE_UNITS = re.compile(r"\d %(?![}\w])|\b\d+(\.\d+)? x\b(?! \d)")  # not of 95% and 1.25x; 3 x 224 is a shape
FOLDERS = ("autotune/**/*.py", "autotune/**/*.html", "examples/**/*.py", "docs/*.md", "*.md")
FILES = [*sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern)), ROOT / "tests" / "cli" / "transcript.txt"]


@pytest.mark.parametrize("path", FILES, ids=name_page)
def test_no_word_or_unit_is_of_the_former_dialect(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), 1)
    found = [f"{number}: {line.strip()}" for number, line in lines if _is_wrong(line)]
    assert found == []


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".md"], ids=name_page)
def test_no_line_of_text_in_a_page_is_longer_than_100_columns(path: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$|^---\n.*?^---$", "", path.read_text())
    others = ("|", "    ", "      ", "![")  # tables, code, options of mkdocstrings, pictures
    assert [line for line in text.splitlines() if len(line) > 100 and not line.startswith(others)] == []


def _is_wrong(line: str) -> bool:
    return FORBIDDEN.search(line.replace("_", " ")) is not None or LOOSE_UNITS.search(line) is not None
