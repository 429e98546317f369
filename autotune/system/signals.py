"""Handles SIGINT and SIGTERM so that an interrupted run keeps its measurements.

Python raises KeyboardInterrupt anywhere in the program, and again for each further signal, even while the result is
being written.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

# `timeout` and batch systems signal a process and its group, milliseconds apart; users who insist press Ctrl-C two or
# three times a second.
DEBOUNCE_SECONDS: Final = 0.4
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Debouncer:
    """Recognizes a signal that repeats the previous one."""

    def __init__(self) -> None:
        self._last = -math.inf

    def is_repeated(self) -> bool:
        """Register a signal, and return whether it follows the last accepted one within `DEBOUNCE_SECONDS`."""
        now = time.monotonic()
        if now - self._last < DEBOUNCE_SECONDS:
            return True
        self._last = now
        return False


class _Received:
    """Whether an interrupt was raised during the current command."""

    interrupt = False


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and on SIGINT, even if a shell has set SIGINT to be ignored."""
    debouncer = _Debouncer()
    _Received.interrupt = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not debouncer.is_repeated():
            _Received.interrupt = True
            raise KeyboardInterrupt

    try:
        with _handle(dict.fromkeys(SIGNALS, interrupt)):
            yield
    finally:
        _Received.interrupt = False


def raise_lost_interrupt() -> None:
    """Raise an interrupt again that Python printed and discarded because it arrived in a finalizer or a callback."""
    if _Received.interrupt:
        raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ignore the first interrupt while a run is ending; a second one raises KeyboardInterrupt.

    Signals without a Python handler keep their behavior. Python interrupts only the main thread.
    """
    debouncer = _Debouncer()
    received: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        if debouncer.is_repeated():
            return
        if received:
            raise KeyboardInterrupt
        received.append(number)

    with _handle({number: defer for number in SIGNALS if callable(signal.getsignal(number))}):
        yield


@contextmanager
def _handle(handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
