"""Divides the time that --timeout allows between the search and the validation, and measures each phase of a run.

The cost of a measurement is learned during the run: a factory that takes 20 s is paid for by every measurement in a
fresh process, and only once by the whole search. A measurement that has started is completed, so a run may be late,
but only by the time that its last measurement takes longer than those before it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Final

from autotune.profiles.schema import Phase
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import RunTrial, TrialRequest
from autotune.request import TuningRequest

FRESH_START_SECONDS: Final = 3.0  # a fresh process, its imports and a dataset factory, before one was measured
MIN_TRIALS: Final = 2  # the baseline and the best guess; trials after them leave time for the validation
MIN_RUNS: Final = 2  # the baseline and the best configuration once each; there is no result without them
VALIDATION_SHARE: Final = 0.5  # of the time left when the search begins; a validation that needs more is cut short


class TimeBudget:
    """The time that a run may take, and the time that its phases and measurements have taken so far.

    Args:
        request: The request, with the time limit of the run.
        clock: Returns seconds.
    """

    def __init__(self, request: TuningRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._phase_began = clock()
        self._phase: Phase = "profiling"
        self._phase_seconds: dict[Phase, float] = {}
        self._max_seconds = math.inf if request.timeout_seconds is None else request.timeout_seconds
        self._trial_seconds = request.trial_seconds
        self._start_seconds = FRESH_START_SECONDS
        self._runs = 0
        self._share_seconds = math.inf
        self._warm: list[tuple[float, float]] = []  # duration of each trial of the search, and its seconds of measuring
        self._fresh: list[float] = []  # duration of each run in a fresh process

    def begin_phase(self, phase: Phase) -> None:
        """End the current phase and begin another one."""
        self._phase_seconds = self.phase_seconds
        self._phase, self._phase_began = phase, self._clock()

    @property
    def phase_seconds(self) -> dict[Phase, float]:
        """Seconds of each phase so far."""
        seconds = self._phase_seconds.get(self._phase, 0.0) + self._clock() - self._phase_began
        return {**self._phase_seconds, self._phase: seconds}

    @property
    def passed_seconds(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    @property
    def left_seconds(self) -> float:
        """Seconds that the run may still take; infinite without a limit, negative if the run is late."""
        return self._max_seconds - self.passed_seconds

    def note_start(self, seconds: float) -> None:
        """Record the seconds that a process and its dataset took to start."""
        self._start_seconds = seconds

    def begin_search(self, runs: int) -> None:
        """Begin the search, and reserve time for a validation of at most so many runs."""
        self.begin_phase("search")
        self._runs = runs
        self._share_seconds = VALIDATION_SHARE * self.left_seconds

    def watch(self, run_trial: RunTrial) -> RunTrial:
        """Return the same function, which also records the duration of every measurement."""

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
        """Return whether the search may go on after so many trials."""
        reserve = 0.0
        if tried >= MIN_TRIALS:
            fewest = MIN_RUNS * self._run_seconds
            reserve = min(self._runs * self._run_seconds, max(fewest, self._share_seconds))
        return self.left_seconds >= self._search_trial_seconds + reserve

    def allows_runs(self, count: int) -> bool:
        """Return whether so many more measurements in fresh processes are likely to end in time."""
        return self.left_seconds >= count * self._run_seconds

    @property
    def _search_trial_seconds(self) -> float:
        """Median duration of a trial of the search."""
        return statistics.median(taken for taken, _ in self._warm) if self._warm else 0.0

    @property
    def _run_seconds(self) -> float:
        """Expected duration of a measurement in a fresh process."""
        if self._fresh:
            return statistics.median_low(self._fresh)
        overhead = statistics.median(taken - measured for taken, measured in self._warm) if self._warm else 0.0
        return self._start_seconds + self._trial_seconds + max(0.0, overhead)
