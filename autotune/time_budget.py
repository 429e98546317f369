"""Divides the time of --timeout between search and validation, and measures each phase of a run.

Durations are learned during the run: the time of a slow dataset factory recurs in each fresh process, but not in the
search. A measurement that has started is completed, so a run ends late by at most its last measurement.
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

FRESH_START_SECONDS: Final = 3.0  # start of a fresh process before one was measured
MIN_TRIALS: Final = 2  # the baseline and the best guess; later trials leave time for the validation
MIN_RUNS: Final = 2  # the baseline and the best configuration once each
MAX_RUNS: Final = 6  # two runs of the baseline and two candidates: the time that the search leaves for them
VALIDATION_SHARE: Final = 0.5  # of the time left when the search begins


class TimeBudget:
    """The time limit of a run, and the time that its phases and measurements have taken; `clock` returns seconds."""

    def __init__(self, request: TuningRequest, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._phase_began = clock()
        self._phase: Phase = "profiling"
        self._phase_seconds: dict[Phase, float] = {}
        self._max_seconds = math.inf if request.timeout_seconds is None else request.timeout_seconds
        self._trial_seconds = request.trial_seconds
        self.start_seconds = FRESH_START_SECONDS  # of a process and its dataset
        self._validation_seconds = math.inf
        self._trials: list[tuple[float, float]] = []  # duration and measuring time of each trial of the search
        self._runs: list[float] = []  # duration of each run in a fresh process

    def begin_phase(self, phase: Phase) -> None:
        """End the current phase and begin another one."""
        self._phase_seconds = self.phase_seconds
        self._phase, self._phase_began = phase, self._clock()

    @property
    def phase_seconds(self) -> dict[Phase, float]:
        """Duration of each phase so far."""
        seconds = self._phase_seconds.get(self._phase, 0.0) + self._clock() - self._phase_began
        return {**self._phase_seconds, self._phase: seconds}

    @property
    def passed_seconds(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    @property
    def left_seconds(self) -> float:
        """Seconds left of the time limit; infinite without one, negative if the run is late."""
        return self._max_seconds - self.passed_seconds

    def begin_search(self) -> None:
        """Begin the search, and reserve time for the validation."""
        self.begin_phase("search")
        self._validation_seconds = VALIDATION_SHARE * self.left_seconds

    def timed(self, run_trial: RunTrial) -> RunTrial:
        """Return `run_trial`, which now also records the duration of each measurement."""

        def run(request: TrialRequest) -> TrialResult:
            began = self._clock()
            result = run_trial(request)
            taken = self._clock() - began
            if request.new_process:
                self._runs.append(taken)
            else:
                self._trials.append((taken, request.seconds))
            return result

        return run

    def allows_trial(self, tried: int) -> bool:
        """Return whether there is time for another trial after `tried` trials."""
        trial = statistics.median(taken for taken, _ in self._trials) if self._trials else 0.0
        reserve = 0.0
        if tried >= MIN_TRIALS:
            shortest = MIN_RUNS * self._run_seconds
            reserve = min(MAX_RUNS * self._run_seconds, max(shortest, self._validation_seconds))
        return self.left_seconds >= trial + reserve

    def allows_runs(self, count: int) -> bool:
        """Return whether `count` more runs in fresh processes are likely to end in time."""
        return self.left_seconds >= count * self._run_seconds

    @property
    def _run_seconds(self) -> float:
        """Expected duration of a run in a fresh process."""
        if self._runs:
            return statistics.median_low(self._runs)
        overhead = statistics.median(taken - measured for taken, measured in self._trials) if self._trials else 0.0
        return self.start_seconds + self._trial_seconds + max(0.0, overhead)
