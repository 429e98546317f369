"""Ctrl-C before the command line can print."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from autotune.__main__ import main
from autotune.cli.main import main as run_command
from autotune.system.signals import SIGNALS

if TYPE_CHECKING:
    import pytest


def test_an_interrupt_while_modules_are_imported_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, before = list[object](), {one: signal.getsignal(one) for one in SIGNALS}

    def note_handler(**_: object) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))

    def note_and_run() -> None:
        note_handler()
        run_command()

    monkeypatch.setattr("autotune.cli.main.main", note_and_run)
    monkeypatch.setattr("autotune.cli.main.cli.main", note_handler)
    monkeypatch.setattr("sys.argv", ["dltune", "run", "train.py"])
    try:
        main()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert handlers[:2] == [signal.SIG_DFL, signal.default_int_handler]
