"""Words that users see change on purpose only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.transcript import write_transcript
from tests.test_cli import CLICK


@pytest.mark.skipif(CLICK < (8, 4), reason="click lays its help out differently before 8.4")
def test_users_are_told_what_they_were_told_before() -> None:
    """`python -m tests.commands.transcript > tests/commands/transcript.txt` takes new words over."""
    assert write_transcript() + "\n" == Path(__file__).with_name("transcript.txt").read_text()
