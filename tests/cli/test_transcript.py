"""Words that users see change on purpose only."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from tests.cli.transcript import EXPECTED, write_transcript

CLICK = tuple(int(part) for part in version("click").split(".")[:2])


@pytest.mark.skipif(CLICK < (8, 4), reason="click formats its help differently before 8.4")
def test_users_see_the_expected_words() -> None:
    """If new words are meant, `python -m tests.cli.transcript` accepts them."""
    assert write_transcript() == EXPECTED.read_text()
