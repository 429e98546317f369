"""Shares out the time that --timeout allows among search, confirmation and explanation.

What a measurement costs is learnt as it goes: a factory that takes 20 s is paid for by every measurement in a fresh
process, and only once by the whole search. What is begun is ended; so a run can be late, but only by what the
measurement that was under way took longer than those before it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Final

from autotune.request import TuningRequest
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.time_spent import TimeSpent

FRESH_START_SECONDS: Final = 3.0  # a fresh process, its imports and a dataset factory, before one was measured
MIN_TRIALS: Final = 2  # the baseline and the best guess: the time for confirming is kept from what follows them
MIN_FINALS: Final = 2  # the baseline and the best once each, without which there is no answer
FINAL_SHARE: Final = 0.5  # of what is left when the search begins; a confirmation that needs more is cut short


class Timetable:
    """The time that a run may take, and what its measurements have taken so far; the clock tells seconds."""

    def __init__(self, request: TuningRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self.spent = TimeSpent()
        self._clock = clock
        self._began = clock()
        self._most_seconds = math.inf if request.timeout_seconds is None else request.timeout_seconds
        self._trial_seconds = request.trial_seconds
        self._start_seconds = FRESH_START_SECONDS
        self._finals = 0
        self._share_seconds = math.inf
        self._warm: list[tuple[float, float]] = []  # seconds that a trial of the search took, and those it measured
        self._fresh: list[float] = []

    @property
    def passed_seconds(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    @property
    def left_seconds(self) -> float:
        """Seconds that the run may still take; infinite where the user set no limit, negative when it is late."""
        return self._most_seconds - self.passed_seconds

    def note_start(self, seconds: float) -> None:
        """Take in what the start of a process and of its dataset took."""
        self._start_seconds = seconds

    def begin_search(self, finals: int) -> None:
        """Plan from here on how much time is kept for the confirmation, whose whole is so many measurements."""
        self.spent.begin("search")
        self._finals = finals
        self._share_seconds = FINAL_SHARE * self.left_seconds

    def watch(self, run_trial: RunTrial) -> RunTrial:
        """Learn from every measurement what one costs."""

        def run(request: TrialRequest) -> TrialResult:
            began = self._clock()
            result = run_trial(request)
            taken = self._clock() - began
            if request.fresh:
                self._fresh.append(taken)
            else:
                self._warm.append((taken, request.seconds))
            return result

        return run

    def allows_trial(self, tried: int) -> bool:
        """Tell whether the search may go on after so many trials."""
        reserve = 0.0
        if tried >= MIN_TRIALS:
            fewest = MIN_FINALS * self._final_seconds
            reserve = min(self._finals * self._final_seconds, max(fewest, self._share_seconds))
        return self.left_seconds >= self._search_seconds + reserve

    def allows_finals(self, count: int) -> bool:
        """Tell whether so many more measurements in fresh processes are likely to end in time."""
        return self.left_seconds >= count * self._final_seconds

    def allows_steps(self, count: int) -> bool:
        """Tell whether so many more trials in a warm process are likely to end in time."""
        return self.left_seconds >= count * self._search_seconds

    @property
    def _search_seconds(self) -> float:
        """What a trial of the search usually takes."""
        return statistics.median(taken for taken, _ in self._warm) if self._warm else 0.0

    @property
    def _final_seconds(self) -> float:
        """What a measurement in a fresh process usually takes, or must be expected to before the first."""
        if self._fresh:
            return statistics.median_low(self._fresh)
        beyond = statistics.median(taken - measured for taken, measured in self._warm) if self._warm else 0.0
        return self._start_seconds + self._trial_seconds + max(0.0, beyond)
