"""Measures finalists and baseline again, interleaved, each time in a fresh process as a training run starts.

Whatever was picked for being the best of many was also lucky; only a second look tells by how much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from autotune.messages import RunTrial, TrialRequest, TrialResult
from autotune.noise import NoiseWatch, describe_noise
from autotune.planning import Plan
from autotune.schema import LoaderConfig
from autotune.scoring import estimate, ratio_of_pairs
from autotune.view import View

ROUNDS: Final = 3
MOST_ROUNDS: Final = 5
PAIR: Final = 2  # the baseline and the first finalist, without which nothing is compared
CONFIRM_PRECISION: Final = 0.015
CONFIRM_FACTOR: Final = 1.0  # of a trial's time: the search gets less, because its winners are looked at again
DOUBTFUL: Final = (1.0, 1.1)  # a speed-up between these is worth more rounds when its interval holds 1
SCATTERED: Final = 1.12  # fastest over slowest round of one configuration; above it the machine is not quiet
BEHIND: Final = {1: 0.95, 2: 0.97}  # of the best after so many rounds; below it a finalist is not measured again


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

    def note(self, result: TrialResult, epochs: int) -> None:
        """Add what a round measured."""
        self.results.append(result)
        if result.measurement is not None:
            found = estimate(result.measurement, result.config, epochs)
            self.scores.append(found.samples_per_second)
            self.waits.append(found.wait_fraction)

    @property
    def failure(self) -> TrialResult | None:
        """The first failed result, if there is one."""
        return next((result for result in self.results if result.kind != "completed"), None)

    @property
    def rate(self) -> float:
        """Median throughput over the rounds, samples per second; 0 when there is none or one failed."""
        return statistics.median(self.scores) if self.scores and self.failure is None else 0.0

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
            self._run_round()
            self._drop_those_behind()
            self._look_around()

    def _wants_more(self) -> bool:
        return self.rounds < ROUNDS or (self.rounds < MOST_ROUNDS and (self._is_in_doubt() or self._is_scattered()))

    def _look_around(self) -> None:
        """See what disturbs the machine while no trial runs, and what disturbed the rounds so far."""
        if self._watch is None:
            return
        self._watch.pause()
        quietness = self._watch.finish([contestant.scores for contestant in self.entrants])
        self.noise = describe_noise(quietness, self._plan.machine.usable_cpus)

    def _run_round(self) -> None:
        order = [self.baseline, *self.finalists]
        shift = self.rounds % len(order)
        turn = [contestant for contestant in (*order[shift:], *order[:shift]) if contestant.failure is None]
        measured = 0
        for contestant in turn:
            if (self.rounds or measured >= PAIR) and not self._has_time(1):
                break
            self._measure(contestant)
            measured += 1
        if measured == len(turn) or self.rounds == 0:
            self.rounds += 1

    def _measure(self, contestant: Contestant) -> None:
        rounds = max(ROUNDS, self.rounds + 1)
        self._view.show_round(self.rounds + 1, rounds, contestant.config, None)
        request = TrialRequest(
            config=contestant.config,
            epochs=self._plan.request.epochs,
            seconds=CONFIRM_FACTOR * self._plan.request.trial_seconds,
            precision=CONFIRM_PRECISION,
            fresh=True,
        )
        contestant.note(self._run_trial(request), self._plan.request.epochs)
        score = contestant.scores[-1] if contestant.failure is None else 0.0
        self._view.show_round(self.rounds + 1, rounds, contestant.config, score)

    def _drop_those_behind(self) -> None:
        best = max((contestant.rate for contestant in self.finalists), default=0.0)
        floor = BEHIND.get(self.rounds, 0.0) * best
        self.finalists = [contestant for contestant in self.finalists if contestant.rate >= floor and contestant.rate]

    def _is_scattered(self) -> bool:
        """Whether the best one's rounds lie so far apart that another would make the promise safer."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=self.baseline)
        return bool(best.scores) and max(best.scores) > SCATTERED * min(best.scores)

    def _is_in_doubt(self) -> bool:
        """Whether more rounds could change the verdict."""
        best = max(self.finalists, key=lambda contestant: contestant.rate, default=None)
        if best is None or self.baseline.failure is not None:
            return False
        ratio, interval = ratio_of_pairs(best.scores, self.baseline.scores)
        return interval is not None and DOUBTFUL[0] < ratio < DOUBTFUL[1] and interval[0] <= 1
