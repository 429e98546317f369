"""Where the time of a run goes: by phase of the story, and by what is done meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal["probe", "search", "confirmation", "explanation"]
Activity = Literal["starting", "warming_up", "measuring", "taking_down", "own"]


class TimeSpent:
    """A clock that is always on one activity of one phase; the tuner's own work is what nothing else accounts for."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self._phase: Phase = "probe"
        self._activity: Activity = "own"
        self._seconds: dict[Phase, dict[Activity, float]] = {}

    def begin(self, phase: Phase) -> None:
        """Go over to the next phase."""
        self._account()
        self._phase = phase

    def turn_to(self, activity: Activity) -> None:
        """Go over to something else within the phase."""
        self._account()
        self._activity = activity

    @contextmanager
    def on(self, activity: Activity) -> Iterator[None]:
        """Count the block for an activity, and what follows for the tuner itself."""
        self.turn_to(activity)
        try:
            yield
        finally:
            self.turn_to("own")

    def sum_up(self) -> dict[Phase, dict[Activity, float]]:
        """Give the seconds so far."""
        self._account()
        return {phase: dict(spent) for phase, spent in self._seconds.items()}

    def _account(self) -> None:
        now = self._clock()
        spent = self._seconds.setdefault(self._phase, {})
        spent[self._activity] = spent.get(self._activity, 0.0) + now - self._last
        self._last = now
