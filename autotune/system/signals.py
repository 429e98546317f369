"""Handles signals so that an interrupted run keeps its measurements, even while it writes its result."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

DEBOUNCE_SECONDS: Final = 0.4  # `timeout` signals a process and its group at once; users press Ctrl-C less often
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received: Final[set[str]] = set()  # "interrupt" if one was raised during the current command


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, on SIGHUP except under nohup, and on SIGINT even if a shell ignores it."""

    def interrupt() -> None:
        _received.add("interrupt")
        raise KeyboardInterrupt

    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    try:
        with _handle([number for number in SIGNALS if number != signal.SIGHUP or not is_ignored], interrupt):
            yield
    finally:
        _received.clear()


def raise_lost_interrupt() -> None:
    """Raise an interrupt again that Python printed and discarded because it arrived in a finalizer or a callback."""
    if _received:
        raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ignore the first interrupt while a run is ending; a second one raises. Other handlers than Python's are kept."""
    ignored: list[bool] = []

    def defer() -> None:
        if ignored:
            raise KeyboardInterrupt
        ignored.append(True)

    with _handle([number for number in SIGNALS if callable(signal.getsignal(number))], defer):
        yield


@contextmanager
def _handle(numbers: Iterable[signal.Signals], on_signal: Callable[[], None]) -> Iterator[None]:
    """Call a function on signals, which only the main thread receives, except on repetitions of the last one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -math.inf

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= DEBOUNCE_SECONDS:
            last = now
            on_signal()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
