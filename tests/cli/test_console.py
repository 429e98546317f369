"""Results, errors and exit codes."""

from __future__ import annotations

import errno
import sys
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from autotune.cli.console import INTERRUPTED, NOTHING_MEASURED, RunDisplay, exit_on_error, make_printable, print_result
from autotune.cli.main import cli
from autotune.errors import (
    DltuneError,
    NoFeasibleConfigError,
    OutputError,
    ResultNotSavedError,
    TrialError,
    UsageError,
    WorkloadError,
)
from autotune.tuning import TuningResult
from tests.builders import make_profile
from tests.search.formulas import make_test_plan


def leave_by(error: BaseException, exit_code: int | None = None, interrupted: str = "Interrupted.") -> object:
    """Raise an error in a command, and return its exit code."""
    with pytest.raises(SystemExit) as left, exit_on_error(exit_code, interrupted):
        raise error
    return left.value.code


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (DltuneError("It fails."), 1, "Error: It fails."),
        (TrialError("It fails."), 1, "Error: It fails."),
        (UsageError("It fails."), 2, "Error: It fails."),
        (WorkloadError("It fails.", "Traceback: line 3\n"), 2, "Traceback: line 3\nError: It fails."),
        (NoFeasibleConfigError("It fails."), 3, "Error: It fails."),
        (KeyboardInterrupt(), INTERRUPTED, NOTHING_MEASURED),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_is_a_sentence_after_its_details(
    error: BaseException, code: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave_by(error, interrupted=NOTHING_MEASURED) == code
    assert capsys.readouterr().err == f"{shown}\n"


def test_a_profile_that_cannot_be_saved_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    leave_by(ResultNotSavedError("x.json cannot be written: No space left on device.", '{"profiles": []}'))
    shown = capsys.readouterr()
    assert shown.out == '{"profiles": []}\n'
    assert "No space left on device. The profile is printed instead." in shown.err


class FullDisk:
    encoding = "utf-8"

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        return


def test_a_full_disk_under_stdout_is_an_error_that_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    del capfd  # has its own descriptor 1, which is replaced
    monkeypatch.setattr(sys, "stdout", FullDisk())
    with pytest.raises(OutputError, match=r"No space left on device\. The result is in x\.json\."):
        print_result("text", " The result is in x.json.")


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a\tb\nc", None, "a\tb\nc"),
        ("\x1b]0;owned\x07", None, "\\u001b]0;owned\\u0007"),
        ("é", "ascii", "\\u00e9"),
        ("\U000e0001", None, "\\udb40\\udc01"),
    ],
)
def test_no_text_controls_the_terminal(text: str, encoding: str | None, shown: str) -> None:
    assert make_printable(text, encoding) == shown


def test_ctrl_c_after_the_result_was_saved_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TuningResult(make_profile(), make_test_plan(), ())
    monkeypatch.setattr("autotune.tuning.tune", lambda request, **options: saved)
    monkeypatch.setattr(RunDisplay, "show_result", Mock(side_effect=KeyboardInterrupt))
    result = CliRunner().invoke(cli, ["--dataset", "pkg:make", "-o", "mine.json"], prog_name="dltune")
    assert (result.exit_code, result.stderr) == (INTERRUPTED, "Interrupted. The result is in mine.json.\n")
