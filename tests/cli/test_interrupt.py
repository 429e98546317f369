"""Ctrl-C before the command line can print."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from autotune.__main__ import main

if TYPE_CHECKING:
    import pytest


def test_an_interrupt_while_modules_are_imported_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = list[object]()
    monkeypatch.setattr("autotune.cli.main.main", lambda: handlers.append(signal.getsignal(signal.SIGINT)))
    try:
        main()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert handlers == [signal.SIG_DFL]
