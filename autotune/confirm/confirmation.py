"""Measures finalists and baseline again, interleaved, each time in a fresh process as a training run starts.

Whatever was picked for being the best of many was also lucky; only a second look tells by how much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from autotune.trial.statistics import bound_rounds, ratio_of_pairs
from autotune.trial.protocol import RunTrial, TrialRequest, TrialResult
from autotune.confirm.interference import NoiseWatch, describe_noise
from autotune.search.plan import Plan
from autotune.profiles.schema import Interval, LoaderConfig
from autotune.trial.throughput import estimate
from autotune.progress import View

ROUNDS: Final = 3
MOST_ROUNDS: Final = 5
PAIR: Final = 2  # the baseline and the first finalist, without which nothing is compared
CONFIRM_PRECISION: Final = 0.015
CONFIRM_FACTOR: Final = 1.0  # of a trial's time: the search gets less, because its winners are looked at again
MAX_FAILURES: Final = 2  # of one configuration; the first is looked at once more, a second one was no bad luck
DOUBTFUL_SPEEDUPS: Final = (1.0, 1.1)  # a speed-up between these is worth more rounds when its interval holds 1
SCATTER_RATIO: Final = 1.12  # fastest over slowest round of one configuration; above it the machine is not quiet
BEHIND_RATIO: Final = {1: 0.93, 2: 0.96}  # of the best after so many rounds; below it nobody is measured again


class Contestant:
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

    def bound(self, field: Sequence[Contestant] = (), others: Sequence[Contestant] = ()) -> Interval | None:
        """Give the 95 % interval of its throughput.

        Args:
            field: Those that it was picked from by these rounds.
            others: Further ones that were measured beside it, whose scatter tells what is usual here.

        Returns:
            Lower and upper bound in samples per second; None for fewer than two rounds.
        """
        rivals = [one.scores for one in (*field, *others) if one is not self]
        return bound_rounds(self.scores, max(1, len(field)), rivals)

    def compare(self, other: Contestant, field: Sequence[Contestant] = ()) -> tuple[float, Interval | None]:
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
        return ratio_of_pairs(self.scores[:seen], other.scores[:seen], max(1, len(field)), ratios)

    def is_faster_than(self, other: Contestant, min_speedup: float, field: Sequence[Contestant] = ()) -> bool:
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


class Confirmation:
    """The final under way; what was measured so far stays readable when it is interrupted.

    Args:
        plan: What there is to work with.
        run_trial: Measures one configuration.
        view: Is told what happens.
        watch: Looks at the machine between the rounds; None where trials are not run here.
        has_time: Tells whether there is time for so many more measurements; the baseline and the first finalist are
            measured once in any case.
    """

    def __init__(
        self,
        plan: Plan,
        run_trial: RunTrial,
        view: View,
        watch: NoiseWatch | None = None,
        has_time: Callable[[int], bool] = lambda count: True,
    ) -> None:
        self._plan = plan
        self._run_trial = run_trial
        self._view = view
        self._watch = watch
        self._has_time = has_time
        self.entrants: list[Contestant] = []
        self.baseline = Contestant(plan.baseline)
        self.finalists: list[Contestant] = []
        self.rounds = 0
        self.noise: tuple[str, ...] = ()

    def run(self, finalists: Sequence[LoaderConfig]) -> None:
        """Measure all in turn, round by round, until the verdict is clear.

        Args:
            finalists: Configurations to compare with the baseline, the most promising first.
        """
        self.finalists = [Contestant(config) for config in finalists if config != self.baseline.config]
        self.entrants = [self.baseline, *self.finalists]
        if self._watch is not None:
            self._watch.start()
        while (self.rounds == 0 or self._has_time(1 + len(self.finalists))) and self._wants_more():
            if self._watch is not None:
                self._watch.pause()
            self._run_round()
            self._drop_those_behind()
            self._describe_noise()

    def _wants_more(self) -> bool:
        return self.rounds < ROUNDS or (self.rounds < MOST_ROUNDS and (self._is_in_doubt() or self._is_scattered()))

    def _describe_noise(self) -> None:
        if self._watch is None:
            return
        quietness = self._watch.finish([contestant.scores for contestant in self.entrants])
        self.noise = describe_noise(quietness, self._plan.machine.usable_cpus)

    def _run_round(self) -> None:
        order = [self.baseline, *self.finalists]
        shift = self.rounds % len(order)
        turn = [contestant for contestant in (*order[shift:], *order[:shift]) if not contestant.is_out]
        measured = 0
        for contestant in turn:
            if (self.rounds or measured >= PAIR) and not self._has_time(1):
                break
            if not self._measure(contestant):
                self._measure(contestant)
            measured += 1
        if measured == len(turn) or self.rounds == 0:
            self.rounds += 1

    def _measure(self, contestant: Contestant) -> bool:
        """Measure once, and tell whether that worked."""
        rounds = max(ROUNDS, self.rounds + 1)
        self._view.show_round(self.rounds + 1, rounds, contestant.config, None)
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
        self._view.show_round(self.rounds + 1, rounds, contestant.config, contestant.scores[-1] if has_worked else 0.0)
        return has_worked

    def _drop_those_behind(self) -> None:
        """Go on without who is behind, but for what tells whether the best one's settings pay."""
        running = [contestant for contestant in self.finalists if contestant.rate]
        if not running:
            self.finalists = []
            return
        best = max(running, key=lambda contestant: contestant.rate)
        convention = self._plan.convention
        needed = {convention.make_sibling(best.config), convention.keep_training(best.config)}
        floor = BEHIND_RATIO.get(self.rounds, 0.0) * best.rate
        self.finalists = [one for one in running if one.rate >= floor or one.config in needed]

    def _is_scattered(self) -> bool:
        """Whether the best one's rounds lie so far apart that another would make the promise safer."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=self.baseline)
        return bool(best.scores) and max(best.scores) > SCATTER_RATIO * min(best.scores)

    def _is_in_doubt(self) -> bool:
        """Whether more rounds could change the verdict."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=None)
        if best is None or not self.baseline.rate:
            return False
        ratio, interval = best.compare(self.baseline, self.finalists)
        low, high = DOUBTFUL_SPEEDUPS
        return interval is not None and low < ratio < high and interval[0] <= 1
