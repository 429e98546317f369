"""Is there time left? What would not fit any more is left out, and named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

Part = Literal["tuning", "grid", "peer", "round"]
GUESSES: Final[dict[Part, float]] = {"tuning": 85.0, "grid": 25.0, "peer": 90.0, "round": 35.0}  # until one was seen


class Budget:
    """A time budget from now on, and how long the parts of the work take; `now` gives the moment, in seconds."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._end = now() + seconds
        self._seen: dict[Part, dict[str, float]] = {}

    @property
    def left(self) -> float:
        """Seconds left; negative when it is overdrawn."""
        return self._end - self._now()

    def expect(self, part: Part, of: str = "") -> float:
        """Give the seconds that a part takes: as the last time for this workload, or as the longest of others."""
        seen = self._seen.get(part, {})
        return seen.get(of, max(seen.values(), default=GUESSES[part]))

    def allows(self, **counts: int) -> bool:
        """Tell whether there is time left for so many of each part, as in `allows(tuning=1, round=2)`."""
        return sum(self.expect(part) * counts.get(part, 0) for part in GUESSES) <= self.left

    @contextmanager
    def timed(self, part: Part, of: str) -> Iterator[None]:
        """Time a part of a workload, to know how long the next one will take."""
        started = self._now()
        yield
        self._seen.setdefault(part, {})[of] = self._now() - started
