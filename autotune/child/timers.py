"""Tells when each step of an epoch ended, on the device that ran it, and how long that device waited for data.

A device works after the call has returned, so its moments are marked by events on its stream and read when it has
passed them; waiting for it at every step would take away the overlap that is to be measured. But the host must not run
away from it either: it decides when a trial ends, and every step that it is ahead holds a batch in pinned memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

SECONDS_PER_MILLISECOND: Final = 1e-3
MAX_STEPS_AHEAD: Final = 8  # of the device; a queue of launches holds a few real ones


class HostStepTimer:
    """Times the steps of a device that has done its work when the call returns; it starts when it is made."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._started = self._asked = now()
        self._moments: list[float] = []
        self.waits: list[float] = []  # for each batch, in seconds

    def ask(self) -> None:
        """Note that the loader is asked for the next batch."""
        self._asked = self._now()

    def begin(self) -> None:
        """Note that the batch is there and the step begins."""
        self.waits.append(self._now() - self._asked)

    def end(self) -> None:
        """Note that the step has been given to the device."""
        self._moments.append(self._now() - self._started)

    def read(self) -> tuple[list[float], float]:
        """Read when each step ended, as far as it has, since the start, and how long was waited; in seconds."""
        return self._moments, sum(self.waits)


class CudaStepTimer:
    """Times the steps of a device that works on while the host goes on, by `torch.cuda.Event`s with timing.

    The device waits for data from the end of a step to the beginning of the next one: an idle stream passes a mark at
    once, a busy one when it gets there.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._spare: list[Any] = []
        self._pending: deque[tuple[Any, Any]] = deque()
        self._moments: list[float] = []
        self.waits: list[float] = []  # for each batch, in seconds
        self._last = self._start = self._begun = self._mark()

    def ask(self) -> None:
        """Note nothing: what the host waits is not what the device waits."""

    def begin(self) -> None:
        """Mark the beginning of a step."""
        self._begun = self._mark()

    def end(self) -> None:
        """Mark the end of the step; wait for the device if it is many steps behind."""
        self._pending.append((self._begun, self._mark()))
        if len(self._pending) > MAX_STEPS_AHEAD:
            self._pending[-MAX_STEPS_AHEAD - 1][1].synchronize()
            self._resolve_passed()

    def read(self) -> tuple[list[float], float]:
        """Read when each step ended that the device is through with, and how long it idled, in seconds."""
        self._resolve_passed()
        return self._moments, sum(self.waits)

    def _resolve_passed(self) -> None:
        while self._pending and self._pending[0][1].query():
            self._resolve(*self._pending.popleft())

    def _resolve(self, begun: Any, ended: Any) -> None:
        before = self._moments[-1] if self._moments else 0.0
        self._moments.append(max(before, SECONDS_PER_MILLISECOND * self._start.elapsed_time(ended)))
        self.waits.append(max(0.0, SECONDS_PER_MILLISECOND * self._last.elapsed_time(begun)))
        self._spare.append(begun)
        if self._last is not self._start:
            self._spare.append(self._last)
        self._last = ended

    def _mark(self) -> Any:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event


StepTimer = HostStepTimer | CudaStepTimer
