"""Words that users see change on purpose only."""

from __future__ import annotations

import pytest

from tests.cli.transcript import HELD, write_transcript
from tests.test_cli import CLICK


@pytest.mark.skipif(CLICK < (8, 4), reason="click lays its help out differently before 8.4")
def test_users_are_told_what_they_were_told_before() -> None:
    """Where new words are meant, `python -m tests.cli.transcript` takes them over."""
    assert write_transcript() == HELD.read_text()
