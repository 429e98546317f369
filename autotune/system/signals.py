"""Ctrl-C and SIGTERM end a run early, and must not cost it what it has measured.

Python raises KeyboardInterrupt wherever the program happens to be, and again for each further signal: in the middle of
writing the answer down as well, when the only thing left to lose is the answer.
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

# Signals so soon after one that was heard are its echo: `timeout` and batch systems signal a process and its group. The
# two are milliseconds apart; people who insist press two or three times a second, and keep pressing.
DEBOUNCE_SECONDS: Final = 0.4
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class SignalDebouncer:
    """Tells a signal from the echo of the one before."""

    def __init__(self) -> None:
        self._heard = -math.inf

    def is_echo(self) -> bool:
        """Note that a signal has come, and tell whether it belongs to the last one that did not."""
        now = time.monotonic()
        if now - self._heard < DEBOUNCE_SECONDS:
            return True
        self._heard = now
        return False


class _Heard:
    """Whether an interrupt was raised in the command under way."""

    interrupt = False


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Treat SIGTERM (a job's end, a container's stop) as Ctrl-C, and hear SIGINT where a shell has it ignored."""
    debouncer = SignalDebouncer()
    _Heard.interrupt = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not debouncer.is_echo():
            _Heard.interrupt = True
            raise KeyboardInterrupt

    try:
        with _handle(dict.fromkeys(SIGNALS, interrupt)):
            yield
    finally:
        _Heard.interrupt = False


def raise_lost_interrupt() -> None:
    """Raise an interrupt again that got lost: Python prints and forgets it where a finalizer or a callback was running.

    To be called where nothing happens any more after an interrupt.
    """
    if _Heard.interrupt:
        raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Put off an interrupt while a run comes to its end by itself; a second one gets through.

    Signals that would not raise KeyboardInterrupt are left alone, and so is everything in other threads than the main
    one, which Python never interrupts.
    """
    debouncer = SignalDebouncer()
    heard: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        if debouncer.is_echo():
            return
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    raising = [number for number in SIGNALS if callable(signal.getsignal(number))]
    with _handle(dict.fromkeys(raising, defer)):
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
