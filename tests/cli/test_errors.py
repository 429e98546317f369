"""What a command says at its end."""

from __future__ import annotations

import pytest

from autotune.cli.errors import INTERRUPTED, NOTHING_MEASURED, exit_on_error


def interrupt(**options: str) -> int:
    """Interrupt a command, and give its exit code."""
    with pytest.raises(SystemExit) as left, exit_on_error(**options):  # type: ignore[arg-type]  # as a command names it
        raise KeyboardInterrupt
    assert isinstance(left.value.code, int)
    return left.value.code


def test_a_command_that_measures_nothing_says_no_more_than_that_it_was_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert interrupt() == INTERRUPTED
    assert capsys.readouterr().err == "Interrupted.\n"


def test_a_command_that_measures_says_that_there_is_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert interrupt(interrupted=NOTHING_MEASURED) == INTERRUPTED
    assert "Interrupted before any configuration was measured; no result was written." in capsys.readouterr().err
