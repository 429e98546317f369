"""Measures finalists and baseline again, interleaved, each time in a fresh process as a training run starts.

Whatever was picked for being the best of many was also lucky; only a second look tells by how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from autotune.config import LoaderConfig
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.trial.interruption import capture_interruption
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.validation.interference import InterferenceMonitor, describe_interference
from autotune.validation.runs import CandidateRuns, find_lead

ROUNDS: Final = 2
MAX_ROUNDS: Final = 5  # while the verdict is in doubt
MAX_SCATTERED_ROUNDS: Final = 3  # while only the best one's rounds lie far apart: the median of three is not led astray
MIN_ENTRANTS: Final = 2  # the baseline and the first finalist, without which nothing is compared
CONFIRM_PRECISION: Final = 0.015
CONFIRM_FACTOR: Final = 1.0  # of a trial's time: the search gets less, because its winners are looked at again
BORDERLINE_SPEEDUPS: Final = (1.0, 1.25)  # a speed-up between these is worth more rounds when its interval holds 1
FAR_AHEAD_SPEEDUP: Final = 1.5  # of the best over the baseline as far as is known; then no verdict hangs on it,
SLOW_BASELINE_SHARE: Final = 0.5  # and the baseline is given so much of a trial's time
MAX_ROUND_SPREAD: Final = 1.12  # fastest over slowest round of one configuration; above it the machine is not quiet
DROP_BELOW_RATIO: Final = {1: 0.93, 2: 0.96}  # of the best after so many rounds; below it nobody is measured again


@dataclass(frozen=True, slots=True)
class Validation:
    """What the confirmation measured, as far as it got."""

    baseline: CandidateRuns
    finalists: tuple[CandidateRuns, ...] = ()  # those that were not behind
    entrants: tuple[CandidateRuns, ...] = ()  # all that were measured, the baseline first
    rounds: int = 0  # whole ones
    noise: tuple[str, ...] = ()  # sentences on what disturbed it
    interrupted_by: BaseException | None = None  # None when it came to its own end

    @property
    def failed(self) -> tuple[CandidateRuns, ...]:
        """Those of which a measurement failed, be it once only."""
        return tuple(one for one in self.entrants if one.failures)


def confirm(
    plan: Plan,
    finalists: Sequence[LoaderConfig],
    run_trial: RunTrial,
    progress: ProgressListener,
    monitor: InterferenceMonitor | None = None,
    has_time: Callable[[int], bool] = lambda count: True,
    expected: Mapping[LoaderConfig, float] = MappingProxyType({}),
) -> Validation:
    """Measure finalists and baseline in turn, round by round, until the verdict is clear or the run is cut short.

    Without a monitor nobody looks at the machine between the rounds. `has_time` tells whether there is time for so many
    more measurements; the baseline and the first finalist are measured once in any case. What the search has learnt to
    expect, in samples per second, says before the first round whether the verdict hangs on the baseline.
    """
    rounds = _Rounds(plan, finalists, run_trial, progress, has_time, expected)
    noise: tuple[str, ...] = ()
    with capture_interruption() as cut:
        if monitor is not None:
            monitor.start()
        while rounds.needs_more():
            if monitor is not None:
                monitor.measure_others()
            rounds.run_round()
            rounds.drop_slow_finalists()
            if monitor is not None:
                found = monitor.finish([one.scores for one in rounds.entrants])
                noise = describe_interference(found, plan.machine.usable_cpus)
    return Validation(rounds.baseline, tuple(rounds.finalists), tuple(rounds.entrants), rounds.done, noise, cut.cause)


def measure_run(
    request: TuningRequest,
    one: CandidateRuns,
    run_trial: RunTrial,
    progress: ProgressListener,
    number: int,
    share: float = 1.0,
) -> bool:
    """Measure a configuration once in a fresh process, in a round of that number, and tell whether that worked.

    It is given a share of the time that a trial may take.
    """
    rounds = max(ROUNDS, number)
    progress.show_round(number, rounds, one.config, None)
    trial = TrialRequest(
        config=one.config,
        epochs=request.epochs,
        seconds=share * CONFIRM_FACTOR * request.trial_seconds,
        precision=CONFIRM_PRECISION,
        fresh=True,
    )
    result = run_trial(trial)
    one.note(result, request.epochs)
    has_worked = result.measurement is not None
    progress.show_round(number, rounds, one.config, one.scores[-1] if has_worked else 0.0)
    return has_worked


class _Rounds:
    """The rounds under way."""

    def __init__(
        self,
        plan: Plan,
        finalists: Sequence[LoaderConfig],
        run_trial: RunTrial,
        progress: ProgressListener,
        has_time: Callable[[int], bool],
        expected: Mapping[LoaderConfig, float],
    ) -> None:
        self._plan = plan
        self._expected = expected
        self._run_trial = run_trial
        self._progress = progress
        self._has_time = has_time
        self.baseline = CandidateRuns(plan.baseline)
        self.finalists = [CandidateRuns(config) for config in finalists if config != plan.baseline]
        self.entrants = [self.baseline, *self.finalists]
        self._rested: list[CandidateRuns] = []  # finalists whose rounds so far are enough
        self.done = 0

    def needs_more(self) -> bool:
        """Tell whether another round may begin, and could change the verdict or what is promised."""
        if self.done and not self._has_time(1 + len(self.finalists)):
            return False
        if self.done < ROUNDS or (self.done < MAX_ROUNDS and self._is_in_doubt()):
            return True
        return self.done < MAX_SCATTERED_ROUNDS and self._is_scattered()

    def run_round(self) -> None:
        """Measure all in turn; each round begins with another one."""
        order = [one for one in (self.baseline, *self.finalists) if one not in self._rested]
        shift = self.done % len(order)
        turn = [one for one in (*order[shift:], *order[:shift]) if not one.is_out]
        measured = 0
        for one in turn:
            if (self.done or measured >= MIN_ENTRANTS) and not self._has_time(1):
                break
            if not self._measure(one):
                self._measure(one)
            measured += 1
        if measured == len(turn) or self.done == 0:
            self.done += 1

    def _measure(self, one: CandidateRuns) -> bool:
        """Measure once, and tell whether that worked."""
        share = SLOW_BASELINE_SHARE if one is self.baseline and self._is_far_behind() else 1.0
        return measure_run(self._plan.request, one, self._run_trial, self._progress, self.done + 1, share)

    def _is_far_behind(self) -> bool:
        """Whether the baseline was so slow that how slow it is changes nothing."""
        entrants = self.finalists or [self.baseline]
        lead = find_lead(entrants).rate or max(self._expected.get(one.config, 0.0) for one in entrants)
        rate = self.baseline.rate or self._expected.get(self.baseline.config, math.inf)
        return rate * FAR_AHEAD_SPEEDUP < lead

    def drop_slow_finalists(self) -> None:
        """Go on without who is behind, but for what tells whether the best one's settings pay."""
        running = [one for one in self.finalists if one.rate]
        if not running:
            self.finalists = []
            return
        best = find_lead(running)
        convention = self._plan.defaults
        keeps = (convention.keep_order, convention.default_variant, convention.keep_training, convention.keep_knobs)
        needed = {keep(best.config) for keep in keeps}
        floor = DROP_BELOW_RATIO.get(self.done, 0.0) * best.rate
        self.finalists = [one for one in running if one.rate >= floor or one.config in needed]
        is_settled = self.done >= ROUNDS and not self._is_in_doubt()  # another round is for what is promised alone
        self._rested = [one for one in self.finalists if is_settled and one is not best and one.config not in needed]

    def _is_scattered(self) -> bool:
        """Whether the best one's rounds lie so far apart that another would make the promise safer."""
        best = find_lead(self.finalists or [self.baseline])
        return bool(best.scores) and max(best.scores) > MAX_ROUND_SPREAD * min(best.scores)

    def _is_in_doubt(self) -> bool:
        """Whether more rounds could change the verdict."""
        if not self.finalists or not self.baseline.rate:
            return False
        ratio, interval = find_lead(self.finalists).compare(self.baseline, self.finalists)
        low, high = BORDERLINE_SPEEDUPS
        return interval is not None and low < ratio < high and interval[0] <= 1
