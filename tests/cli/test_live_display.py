"""The lines at the bottom of a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.cli.live_display import LiveDisplay
from autotune.search.trial_record import TrialRecord
from autotune.trial.measurement import TrialResult
from tests.builders import make_config, make_request, make_result


class Terminal:
    """A terminal of 120 columns that keeps what is written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        console = Console(file=self.stream, force_terminal=True, width=120, color_system=None)
        self.display = LiveDisplay(make_request(trials=4), console=console)

    def show(self, number: int, result: TrialResult, *, is_best: bool = False) -> None:
        self.display.show_start(number, result.config)
        record = TrialRecord(
            number=number, config=result.config, status="measured", score=900.0, constraints={}, result=result
        )
        self.display.show_result(number, record, 0.05, is_best)

    def read_at_the_end(self) -> list[str]:
        """Close the display and list its last lines, before they are taken away."""
        self.display.close()
        return self.stream.getvalue().splitlines()


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_trials_are_counted_and_the_best_is_named(terminal: Terminal) -> None:
    terminal.show(1, make_result(make_config(2), 900.0), is_best=True)
    terminal.show(2, TrialResult(kind="crashed", config=make_config(4), message="died of signal 9 (SIGKILL)"))
    terminal.display.show_skip(3, make_config(8), ("over the budget",))
    text = "\n".join(terminal.read_at_the_end())
    assert "best  #1   w=2 pf=2 bs=32   900/s" in text
    assert "1 ok   1 infeasible   1 skipped" in text
    assert "left at most" in text


def test_a_failure_scrolls_above_and_a_plain_success_does_not(terminal: Terminal) -> None:
    terminal.show(1, make_result(make_config(2), 900.0))
    terminal.show(2, TrialResult(kind="crashed", config=make_config(4), message="died of signal 9 (SIGKILL)"))
    lines = terminal.read_at_the_end()
    assert any("trial  2/4" in line and "died of signal 9" in line for line in lines)
    assert not any("trial  1/4" in line for line in lines)


def test_the_lines_are_taken_away_when_the_run_is_over(terminal: Terminal) -> None:
    terminal.display.close()
    assert terminal.stream.getvalue().endswith("\x1b[2K")
