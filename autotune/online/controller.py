"""Decides in windows of a training run how many workers load its batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from autotune.online.epoch import WorkerSettings
from autotune.online.model import BatchCosts, Window

MAX_TRIES: Final = 6
TIE_RATIO: Final = 0.98  # of the best rate, above which fewer workers are as good
WORTHWHILE_GAIN: Final = 1.05  # predicted, to load in the training process
MIN_WAIT_SHARE: Final = 0.05  # below it, more workers cannot help
BUSY_SHARE: Final = 0.92  # of the CPUs, above which more workers cannot help
FEWER_RATIO: Final = 0.93  # of the best, which fewer workers are predicted to keep
DRIFT_RATIO: Final = 0.9  # of the rate when it converged
DRIFT_WAIT: Final = 0.05  # more of the time waiting than when it converged
MAX_DRIFTS: Final = 3


class Controller:
    """Tries a few numbers of workers, keeps the fewest that are as fast as the best, and notices when that changes.

    Args:
        own: The user's settings.
        start: Settings of the first window; none without workers, unless the profile says so.
        cpus: CPUs of this training process.
        limit: Returns the most workers for a prefetch factor within the limits of memory, /dev/shm and open files, if
            as many as the second argument run already and stay.
    """

    def __init__(
        self, own: WorkerSettings, start: WorkerSettings, cpus: float, limit: Callable[[int, int], int]
    ) -> None:
        self.own, self.settings, self._cpus, self._limit = own, start, cpus, limit
        self.windows: dict[WorkerSettings, Window] = {}
        self.costs: BatchCosts | None = None
        self.has_converged = False
        self.failure = ""
        self._low_windows, self._drifts = 0, 0

    @property
    def final_window(self) -> Window | None:
        """The window of the settings that it stays with; None while it tries others."""
        return self.windows.get(self.settings) if self.has_converged else None

    def fail(self, reason: str) -> None:
        """Return to the user's settings, and try no others: added workers failed."""
        self.settings, self.failure, self.has_converged = self.own, reason, True

    def add(self, window: Window) -> WorkerSettings:
        """Take a window with the current settings into account; return the settings of the next one."""
        if (before := self.final_window) is not None:
            return self._watch(window, before)
        is_first = not self.windows
        self.windows[self.settings] = window
        self.costs = BatchCosts.measure(window, self.costs)
        best = max(one.rate for one in self.windows.values())
        good = [one for one, found in self.windows.items() if found.rate >= TIE_RATIO * best]
        chosen = min(good, key=lambda one: (one != self.own, one.workers, one.prefetch))
        new = [] if len(self.windows) >= MAX_TRIES else self._propose(window, chosen, is_first)
        new = [one for one in new if one not in self.windows]
        self.has_converged = not new
        self.settings = new[0] if new else chosen
        return self.settings

    def _propose(self, window: Window, chosen: WorkerSettings, is_first: bool) -> list[WorkerSettings]:
        """List settings to try, the most likely first."""
        costs, (workers, prefetch), cpus = self.costs, self.settings, self._cpus
        if costs is None:
            return []
        most, most_new = self._limit(prefetch, workers), self._limit(prefetch, 0)
        tries = [costs.propose(cpus, most)] if is_first else []
        is_largest = workers == max(one.workers for one in self.windows)
        is_waiting, is_idle = window.wait_share > MIN_WAIT_SHARE, window.busy_cpus < BUSY_SHARE * cpus
        if is_waiting and is_idle and is_largest and self.settings == chosen:
            tries.append(min(most, math.ceil(1.3 * workers)))
        fewer = math.floor(chosen.workers / 1.25)
        if 0 < fewer <= most_new and costs.predict(fewer, cpus) > FEWER_RATIO * costs.predict(chosen.workers, cpus):
            tries.append(fewer)
        best = max(one.rate for one in self.windows.values())
        if not self.own.workers and costs.predict(0, cpus) > WORTHWHILE_GAIN * best:
            tries.append(0)
        return [WorkerSettings(one, prefetch) for one in tries if one <= most]

    def _watch(self, window: Window, before: Window) -> WorkerSettings:
        """Compare a window with the one in which it converged; start again after two that are slower and wait more."""
        is_low = window.rate < DRIFT_RATIO * before.rate and window.wait_share > before.wait_share + DRIFT_WAIT
        self._low_windows = self._low_windows + 1 if is_low else 0
        if self._low_windows == 2 and self._drifts < MAX_DRIFTS and not self.failure:
            self.windows, self.has_converged = {}, False
            self._low_windows, self._drifts = 0, self._drifts + 1
            return self.add(window)
        return self.settings
