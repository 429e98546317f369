"""Measures the best configurations and the baseline again in alternating runs.

The best of many noisy measurements is biased upwards; measuring it again, in fresh processes, removes the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autotune.config import Interval, LoaderConfig
from autotune.errors import INTERRUPTIONS
from autotune.progress import ProgressListener
from autotune.protocol.messages import RunTrial, TrialRequest
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.comparison import MIN_SPEEDUP, Comparison
from autotune.validation.noise import NoiseMonitor

if TYPE_CHECKING:  # it imports Optuna, which `dltune check` does not need
    from autotune.search.surrogate import Surrogate

MIN_RUNS: Final = 2
MAX_RUNS: Final = 5  # while a speedup is not certain, by an interval corrected for looking at it after every run
WORTHWHILE_CHANGE: Final = 1.05  # speedup by a change of training; while it is uncertain, there are more runs as well
MAX_SCATTERED_RUNS: Final = 3  # while only the fastest one's runs differ: one outlier does not move a median of three
NEAR_LEADER_RATIO: Final = 0.9  # of the fastest; slower ones rest while it is measured again
VALIDATION_PRECISION: Final = 0.015  # relative half-width of the interval at which a measurement may end early
FAR_AHEAD_SPEEDUP: Final = 1.5  # of the fastest over the baseline; above it, one precise run of the baseline is enough
MAX_RUN_SPREAD: Final = 1.12  # fastest over slowest run of one configuration; above it another run is worth its time
MAX_FAILED: Final = 5  # candidates; if so many fail and the baseline works, no others are measured
DROP_BELOW_RATIO: Final = {1: 0.93, 2: 0.96}  # of the fastest, by completed runs; slower candidates are dropped


@dataclass(frozen=True, slots=True)
class Validation:
    """Measurements of the validation, complete or interrupted."""

    baseline: CandidateRuns
    candidates: tuple[CandidateRuns, ...] = ()  # that were not dropped
    measured: tuple[CandidateRuns, ...] = ()  # the baseline and all candidates, with those that were dropped
    runs: int = 0  # complete ones
    noise: tuple[str, ...] = ()  # sentences on disturbances of the machine
    interrupted_by: BaseException | None = None
    surrogate: Surrogate | None = None  # what the search expects

    @property
    def field(self) -> list[CandidateRuns]:
        """All candidates, with those that were dropped."""
        return [one for one in self.measured if one is not self.baseline]

    @property
    def comparison(self) -> Comparison:
        """Compares the candidates."""
        return Comparison(self.field, self.surrogate)


def validate(
    plan: Plan,
    choose: Callable[[Sequence[LoaderConfig]], Sequence[LoaderConfig]],
    run_trial: RunTrial,
    progress: ProgressListener,
    monitor: NoiseMonitor | None = None,
    has_time: Callable[[int], bool] = lambda count: True,
    surrogate: Surrogate | None = None,
) -> Validation:
    """Measure the baseline and the configurations that `choose` returns in alternating runs, until the result is clear.

    `choose` is called again with those that failed, if all did but the baseline.
    `has_time` returns whether there is time for this many more measurements; the baseline and the first candidate are
    measured once in any case. What the search expects, `surrogate`, counts in comparisons of candidates.
    """
    baseline, candidates, measured = CandidateRuns(plan.baseline), list[CandidateRuns](), tuple[CandidateRuns, ...]()
    runs, is_whole, interrupted_by = 0, True, None
    try:
        candidates = [CandidateRuns(config) for config in choose(()) if config != plan.baseline]
        measured, active = (baseline, *candidates), [baseline, *candidates]
        while active and is_whole and (not runs or has_time(len(active))):
            if monitor is not None:
                monitor.measure_others()
            first = runs % len(active)  # each run begins with another configuration
            for position, one in enumerate((*active[first:], *active[:first])):
                if (runs or position >= 2) and not has_time(1):
                    is_whole = False
                    break
                while not measure_run(plan.request, one, run_trial, progress, runs + 1) and not one.is_out:
                    pass  # a failed run is repeated
            runs += is_whole or not runs
            candidates, active = _plan_next_run(plan, runs, baseline, candidates, Comparison(measured[1:], surrogate))
            if not candidates:  # the fastest failed in a later run
                candidates = [one for one in measured[1:] if one.rate]
            is_alone = baseline.rate > 0 and not candidates and len(measured) > 1
            if is_alone and len(measured) <= MAX_FAILED and is_whole and has_time(1):  # others may work
                chosen, known = choose([one.config for one in measured if one.is_out]), {one.config for one in measured}
                candidates = [CandidateRuns(one) for one in chosen if one not in known]
                measured, active = (*measured, *candidates), [*active, *candidates]
    except tuple(INTERRUPTIONS) as error:
        interrupted_by = error
    noise = () if monitor is None else tuple(monitor.describe([one.rates for one in measured]))
    return Validation(baseline, tuple(candidates), measured, runs, noise, interrupted_by, surrogate)


def _plan_next_run(
    plan: Plan, runs: int, baseline: CandidateRuns, candidates: list[CandidateRuns], comparison: Comparison
) -> tuple[list[CandidateRuns], list[CandidateRuns]]:
    """Return the candidates that may still win, and the configurations to measure next: none if the result is clear.

    The variants of the fastest with default values or unchanged training stay, and the fastest of those that change
    less of the training, down to none: they show what its settings gain. Only the fastest is compared further with the
    baseline. A baseline that is far behind after one precise run rests.
    """
    candidates = [one for one in candidates if one.rate]
    best = max(candidates, key=comparison.rate) if candidates else baseline
    variants = {keep(best.config) for keep in (plan.keep_order, plan.default_variant, plan.keep_training)}
    alternatives = comparison.list_alternatives(plan, best, candidates)
    needed = [one for one in candidates if one is best or one in alternatives or one.config in variants]
    alternative = next(iter(alternatives), None)
    floor = DROP_BELOW_RATIO.get(runs, 0.0) * (comparison.rate(best) if candidates else 0.0)
    candidates = [one for one in candidates if one in needed or comparison.rate(one) >= floor]
    leader = baseline if baseline.rate > best.rate else best
    rates = leader.rates.values() or (1.0,)
    is_scattered = runs < MAX_SCATTERED_RUNS and max(rates) > MAX_RUN_SPREAD * min(rates)
    near = [one for one in (baseline, *needed) if one.rate >= NEAR_LEADER_RATIO * leader.rate]
    may_rest = baseline.rate > 0 and len(baseline.rates) == 1 and best.rate > FAR_AHEAD_SPEEDUP * baseline.rate
    is_far_behind = may_rest and baseline.is_precise and comparison.is_faster(best, baseline)
    active = list[CandidateRuns]()
    if len(best.rates) < MIN_RUNS:
        active = candidates if is_far_behind else [baseline, *candidates]
    elif runs < MAX_RUNS and not is_far_behind and _is_open(best, baseline, comparison.speedup, MIN_SPEEDUP, MAX_RUNS):
        active = [baseline, best]
    elif is_scattered:
        active = near
    elif (
        alternative is not None and runs < MAX_RUNS and _is_open(best, alternative, comparison.gain, WORTHWHILE_CHANGE)
    ):
        active = [best, alternative]
    return candidates, [one for one in active if not one.is_out]


def _is_open(
    best: CandidateRuns,
    other: CandidateRuns,
    compare: Callable[[CandidateRuns, CandidateRuns, int], tuple[float, Interval | None]],
    min_speedup: float,
    looks: int = 1,
) -> bool:
    """Return whether the best is faster than another one by more than this, which further runs may show for certain.

    Up to MAX_RUNS, an interval narrows at most with the square of the number of runs: by the mean, by the quantile of
    Student's t, and by a spread below the usual one.
    """
    if best is other or not (best.rate and other.rate):
        return False
    speedup, interval = compare(best, other, looks)
    if interval is None or speedup <= min_speedup or interval[0] > 1:
        return False
    low, high = (math.log(end) for end in interval)
    return low + high > (high - low) * (min(len(best.rates), len(other.rates)) / MAX_RUNS) ** 2


def measure_run(
    request: TuningRequest, runs: CandidateRuns, run_trial: RunTrial, progress: ProgressListener, number: int
) -> bool:
    """Measure a configuration once in a fresh process; return whether the run completed."""
    progress.show_run(number, runs.config, None)
    seeks_end = all(one.epoch_batches is not None for one in runs.measurements)  # else it takes too long
    trial = TrialRequest(
        config=runs.config,
        epochs=request.epochs,
        seconds=request.trial_seconds,
        seeks_end=seeks_end,
        precision=VALIDATION_PRECISION,
        new_process=True,
    )
    result = run_trial(trial)
    runs.add(number, result, request.epochs)
    progress.show_run(number, runs.config, 0.0 if result.measurement is None else runs.rates[number])
    return result.measurement is not None
