"""Measures finalists and baseline again, interleaved, each time in a fresh process as a training run starts.

Whatever was picked for being the best of many was also lucky; only a second look tells by how much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.confirm.interference import InterferenceMonitor, describe_interference
from autotune.progress import ProgressListener
from autotune.search.plan import Plan
from autotune.trial.interruption import keep_what_was_measured
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.statistics import paired_ratio, throughput_ci95
from autotune.trial.throughput import estimate

ROUNDS: Final = 3
MAX_ROUNDS: Final = 5
MIN_ENTRANTS: Final = 2  # the baseline and the first finalist, without which nothing is compared
CONFIRM_PRECISION: Final = 0.015
CONFIRM_FACTOR: Final = 1.0  # of a trial's time: the search gets less, because its winners are looked at again
MAX_FAILURES: Final = 2  # of one configuration; the first is looked at once more, a second one was no bad luck
BORDERLINE_SPEEDUPS: Final = (1.0, 1.1)  # a speed-up between these is worth more rounds when its interval holds 1
MAX_ROUND_SPREAD: Final = 1.12  # fastest over slowest round of one configuration; above it the machine is not quiet
DROP_BELOW_RATIO: Final = {1: 0.93, 2: 0.96}  # of the best after so many rounds; below it nobody is measured again


class ConfirmationRuns:
    """A configuration in the confirmation, with what was measured of it round by round.

    Args:
        config: The configuration.
    """

    def __init__(self, config: LoaderConfig) -> None:
        self.config = config
        self.results: list[TrialResult] = []
        self.scores: list[float] = []
        self.waits: list[float] = []

    def note(self, result: TrialResult, epochs: int, cold_seconds: float = 0.0) -> None:
        """Add what a round measured, with what its first epoch would have cost in addition in a fresh process."""
        self.results.append(result)
        if result.measurement is not None:
            found = estimate(result.measurement, result.config, epochs, cold_seconds)
            self.scores.append(found.samples_per_second)
            self.waits.append(found.wait_fraction)

    @property
    def failures(self) -> list[TrialResult]:
        """The results that failed."""
        return [result for result in self.results if result.kind != "completed"]

    @property
    def is_out(self) -> bool:
        """Whether it failed so often that it was not bad luck."""
        return len(self.failures) >= MAX_FAILURES

    @property
    def rate(self) -> float:
        """Median throughput over the rounds, samples per second; 0 when there is none or it is out."""
        return statistics.median(self.scores) if self.scores and not self.is_out else 0.0

    def bound(self, field: Sequence[ConfirmationRuns] = (), others: Sequence[ConfirmationRuns] = ()) -> Interval | None:
        """Give the 95 % interval of its throughput.

        Args:
            field: Those that it was picked from by these rounds.
            others: Further ones that were measured beside it, whose scatter tells what is usual here.

        Returns:
            Lower and upper bound in samples per second; None for fewer than two rounds.
        """
        rivals = [one.scores for one in (*field, *others) if one is not self]
        return throughput_ci95(self.scores, max(1, len(field)), rivals)

    def compare(self, other: ConfirmationRuns, field: Sequence[ConfirmationRuns] = ()) -> tuple[float, Interval | None]:
        """Compare with another one by the rounds that both have seen.

        Args:
            other: The other one.
            field: Those that this one was picked from by these rounds.

        Returns:
            The median ratio of throughputs, and its 95 % interval; None for fewer than two rounds.
        """
        rivals = [one for one in field if one is not self and one is not other]
        ratios = [[rate / base for rate, base in zip(one.scores, other.scores, strict=False)] for one in rivals]
        seen = min(len(self.scores), len(other.scores))
        return paired_ratio(self.scores[:seen], other.scores[:seen], max(1, len(field)), ratios)

    def is_faster_than(
        self, other: ConfirmationRuns, min_speedup: float, field: Sequence[ConfirmationRuns] = ()
    ) -> bool:
        """Tell whether it is faster by so much, and by more than what the measurement leaves open."""
        speedup, interval = self.compare(other, field)
        return speedup >= min_speedup and (interval is None or interval[0] > 1)

    @property
    def peak_host_bytes(self) -> int:
        """Largest host memory seen."""
        return max((result.peak_host_bytes for result in self.results), default=0)

    @property
    def peak_shm_bytes(self) -> int:
        """Largest /dev/shm use seen."""
        return max((result.peak_shm_bytes for result in self.results), default=0)

    @property
    def peak_gpu_bytes(self) -> int:
        """Largest device memory the allocator held."""
        return max((result.measurement.peak_gpu_bytes for result in self.results if result.measurement), default=0)


@dataclass(frozen=True)
class Confirmation:
    """What the final measured, as far as it got.

    Attributes:
        baseline: The baseline's rounds; they may have failed.
        finalists: The rounds of those that were not behind.
        entrants: All that were measured, the baseline first.
        rounds: Whole rounds.
        noise: Sentences on what disturbed it.
        cut_by: What cut it short; None when it came to its own end.
    """

    baseline: ConfirmationRuns
    finalists: tuple[ConfirmationRuns, ...] = ()
    entrants: tuple[ConfirmationRuns, ...] = ()
    rounds: int = 0
    noise: tuple[str, ...] = ()
    cut_by: BaseException | None = None


def confirm(
    plan: Plan,
    finalists: Sequence[LoaderConfig],
    run_trial: RunTrial,
    progress: ProgressListener,
    monitor: InterferenceMonitor | None = None,
    has_time: Callable[[int], bool] = lambda count: True,
) -> Confirmation:
    """Measure finalists and baseline in turn, round by round, until the verdict is clear.

    Args:
        plan: What there is to work with.
        finalists: Configurations to compare with the baseline, the most promising first.
        run_trial: Measures one configuration.
        progress: Is told what happens.
        monitor: Looks at the machine between the rounds; None where trials are not run here.
        has_time: Tells whether there is time for so many more measurements; the baseline and the first finalist are
            measured once in any case.

    Returns:
        The rounds; when it was cut short, those until then.
    """
    final = _Final(plan, finalists, run_trial, progress, monitor, has_time)
    with keep_what_was_measured() as cut:
        final.run()
    return Confirmation(
        baseline=final.baseline,
        finalists=tuple(final.finalists),
        entrants=tuple(final.entrants),
        rounds=final.rounds,
        noise=final.noise,
        cut_by=cut.cause,
    )


class _Final:
    """The final under way."""

    def __init__(
        self,
        plan: Plan,
        finalists: Sequence[LoaderConfig],
        run_trial: RunTrial,
        progress: ProgressListener,
        monitor: InterferenceMonitor | None,
        has_time: Callable[[int], bool],
    ) -> None:
        self._plan = plan
        self._run_trial = run_trial
        self._progress = progress
        self._monitor = monitor
        self._has_time = has_time
        self.baseline = ConfirmationRuns(plan.baseline)
        self.finalists = [ConfirmationRuns(config) for config in finalists if config != plan.baseline]
        self.entrants = [self.baseline, *self.finalists]
        self.rounds = 0
        self.noise: tuple[str, ...] = ()

    def run(self) -> None:
        """Measure all in turn, round by round, until the verdict is clear."""
        if self._monitor is not None:
            self._monitor.start()
        while (self.rounds == 0 or self._has_time(1 + len(self.finalists))) and self._wants_more():
            if self._monitor is not None:
                self._monitor.measure_others()
            self._run_round()
            self._drop_slow_finalists()
            self._record_interference()

    def _wants_more(self) -> bool:
        return self.rounds < ROUNDS or (self.rounds < MAX_ROUNDS and (self._is_in_doubt() or self._is_scattered()))

    def _record_interference(self) -> None:
        if self._monitor is None:
            return
        found = self._monitor.finish([contestant.scores for contestant in self.entrants])
        self.noise = describe_interference(found, self._plan.machine.usable_cpus)

    def _run_round(self) -> None:
        order = [self.baseline, *self.finalists]
        shift = self.rounds % len(order)
        turn = [contestant for contestant in (*order[shift:], *order[:shift]) if not contestant.is_out]
        measured = 0
        for contestant in turn:
            if (self.rounds or measured >= MIN_ENTRANTS) and not self._has_time(1):
                break
            if not self._measure(contestant):
                self._measure(contestant)
            measured += 1
        if measured == len(turn) or self.rounds == 0:
            self.rounds += 1

    def _measure(self, contestant: ConfirmationRuns) -> bool:
        """Measure once, and tell whether that worked."""
        rounds = max(ROUNDS, self.rounds + 1)
        self._progress.show_round(self.rounds + 1, rounds, contestant.config, None)
        request = TrialRequest(
            config=contestant.config,
            epochs=self._plan.request.epochs,
            seconds=CONFIRM_FACTOR * self._plan.request.trial_seconds,
            precision=CONFIRM_PRECISION,
            fresh=True,
        )
        result = self._run_trial(request)
        contestant.note(result, self._plan.request.epochs)
        has_worked = result.measurement is not None
        self._progress.show_round(
            self.rounds + 1, rounds, contestant.config, contestant.scores[-1] if has_worked else 0.0
        )
        return has_worked

    def _drop_slow_finalists(self) -> None:
        """Go on without who is behind, but for what tells whether the best one's settings pay."""
        running = [contestant for contestant in self.finalists if contestant.rate]
        if not running:
            self.finalists = []
            return
        best = max(running, key=lambda contestant: contestant.rate)
        convention = self._plan.convention
        needed = {convention.make_sibling(best.config), convention.keep_training(best.config)}
        floor = DROP_BELOW_RATIO.get(self.rounds, 0.0) * best.rate
        self.finalists = [one for one in running if one.rate >= floor or one.config in needed]

    def _is_scattered(self) -> bool:
        """Whether the best one's rounds lie so far apart that another would make the promise safer."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=self.baseline)
        return bool(best.scores) and max(best.scores) > MAX_ROUND_SPREAD * min(best.scores)

    def _is_in_doubt(self) -> bool:
        """Whether more rounds could change the verdict."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=None)
        if best is None or not self.baseline.rate:
            return False
        ratio, interval = best.compare(self.baseline, self.finalists)
        low, high = BORDERLINE_SPEEDUPS
        return interval is not None and low < ratio < high and interval[0] <= 1
