"""Failures of the user's code: retries them, and finds out whether workers or the data cause them.

A failure with workers is followed by a trial of the fewest, and if that fails too, of none, until the rates decide.
Workers are the cause if failures without them are improbably few (below 5%, as a Poisson count); else the data is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, Literal

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import WorkloadError
from autotune.protocol.measurement import CODE_FAILURES, PICKLE_ADVICE, TrialResult, TrialStatus
from autotune.request import WorkloadRequest

FLAKY: Final[tuple[TrialStatus, ...]] = ("workload_failed", "crashed", "device_failed")  # a hang takes too long
MIN_PROBABILITY: Final = 0.05  # of so few failures without workers; below it workers are the cause
MAX_TRIALS_WITHOUT_WORKERS: Final = 4  # in a run, to find the cause
ADVICE: Final[dict[TrialStatus, str]] = {
    "workload_failed": "The usual cause is a file or connection that workers share: open it in __getitem__.",
    "crashed": "The usual cause is native code that does not survive a fork: try --set multiprocessing_context=spawn.",
    "stalled": "The usual causes are a lock or threads across a fork: try --set multiprocessing_context=spawn.",
}

Cause = tuple[TrialStatus, str, bool]


def cause_of(result: TrialResult) -> Cause:
    """Return what equal failures have in common: kind, type and place of the error, and whether the step failed."""
    return result.status, result.cause, result.in_step


def _split(trials: Sequence[TrialResult]) -> tuple[list[TrialResult], list[TrialResult]]:
    busy = [one for one in trials if one.config.dataloader.num_workers]
    return busy, [one for one in trials if not one.config.dataloader.num_workers]


def _count_samples(trials: Sequence[TrialResult]) -> int:
    traces = [trace for one in trials if one.measurement is not None for trace in one.measurement.epochs]
    return max(sum(one.samples for one in traces) + sum(one.samples for one in trials), len(trials), 1)


def find_culprit(trials: Sequence[TrialResult]) -> Literal["workers", "data"] | None:
    """Return the cause of the failures with workers; None if it is not clear yet."""
    busy, idle = _split(trials)
    causes = {cause_of(one) for one in busy if one.status in CODE_FAILURES and not one.in_step}
    failed, seen = (sum(cause_of(one) in causes for one in side) for side in (busy, idle))
    expected = failed / _count_samples(busy) * _count_samples(idle)
    probability = math.exp(-expected) * sum(expected**count / math.factorial(count) for count in range(seen + 1))
    return "workers" if probability < MIN_PROBABILITY else "data" if seen else None


def describe_failure(trials: Sequence[TrialResult], cause: Cause) -> str:
    """Describe a failure, as in `in 3 of 4 trials (1,920 samples) it raised ValueError: bad header, with workers`.

    The training step fails in the training process, whether there are workers or not.
    """
    sides = dict(zip(("with", "without"), _split(trials), strict=True))
    sides = {name: side for name, side in sides.items() if cause[2] or cause in map(cause_of, side)}
    tried = [one for side in sides.values() for one in side]
    failed = [one for one in tried if cause_of(one) == cause]
    counts = f"in {len(failed)} of {len(tried):,} trials ({_count_samples(tried):,} samples)"
    if failed[0].in_step:
        return f"{counts} the training step {_shorten(failed[0])}"
    return f"{counts} it {_shorten(failed[0])}, {' and '.join(sides)} workers"


def _shorten(failure: TrialResult) -> str:
    """Return what happened, without the advice."""
    return failure.message.partition(". ")[0].rstrip(".")


class FailureCheck:
    """Retries failed trials, and finds out whether workers fail with this workload, or the data itself.

    Args:
        candidates: The configurations of the search.
        run_trial: Runs a trial to its end.
        are_workers_fixed: Whether the user's loader sets their number, so that nothing can be tried without them.
    """

    def __init__(
        self,
        candidates: Sequence[LoaderConfig],
        run_trial: Callable[[LoaderConfig], TrialResult],
        *,
        are_workers_fixed: bool = False,
    ) -> None:
        self.trials: list[TrialResult] = []
        self.reason: str | None = None  # not to use workers
        self.flaw: Cause | None = None  # of the data itself
        self._run_trial, self._are_workers_fixed = run_trial, are_workers_fixed
        self._repeated: set[Cause] = set()  # not retried any more
        self._passing: dict[Cause, None] = {}  # a retry completed
        self._trials_left = MAX_TRIALS_WITHOUT_WORKERS
        busy = [config for config in candidates if config.dataloader.num_workers]
        names = attrgetter("dataloader.num_workers", "dataloader.prefetch_factor", "dataloader.batch_size")
        self.fewest = min(busy, key=names, default=None)  # workers, queue and batch size

    @property
    def warnings(self) -> tuple[str, ...]:
        """Failures to report to the user: also those of the step, if it works with the same batch size, too."""
        steps = [one for one in self.trials if one.in_step and one.status in CODE_FAILURES]
        flaky = [cause_of(one) for one in steps if one.config.dataloader.batch_size in self._sizes_that_work]
        ends = dict.fromkeys(flaky, "may meet this, too, unless a setting causes it")
        ends |= dict.fromkeys(filter(None, [*self._passing, self.flaw]), "would meet this, too")
        failures = {cause: describe_failure(self.trials, cause).removeprefix("in ") for cause in ends}
        sentences = (f"In {failure}. A training run {ends[cause]}." for cause, failure in failures.items())
        return (*filter(None, [self.reason]), *sentences)

    @property
    def _sizes_that_work(self) -> set[int | None]:
        return {one.config.dataloader.batch_size for one in self.trials if one.status == "completed"}

    def run(self, config: LoaderConfig, measure: Callable[[LoaderConfig], TrialResult]) -> TrialResult:
        """Run a trial, and a second time if its failure may be bad luck: it has not repeated itself yet."""
        first = self._note(measure(config))
        cause = cause_of(first)
        if first.status not in FLAKY or (cause in self._repeated and cause != self.flaw):  # a flaw may not be hit twice
            return first
        second = self._note(measure(config))
        if second.status == "completed":
            self._passing[cause] = None
        elif cause == cause_of(second):
            self._repeated.add(cause)
        return second

    def _note(self, result: TrialResult) -> TrialResult:
        self.trials.append(result)
        return result

    def find_cause(self, result: TrialResult) -> bool:
        """Find the cause of a failure; return whether workers, or the data, have now been found to fail."""
        if self.reason is not None or self.flaw is not None:
            return False
        if result.status not in CODE_FAILURES or result.in_step or not result.config.dataloader.num_workers:
            return False
        if self._find_flaw() is None and self.fewest is not None:
            tried = [one for one in self.trials if one.config == self.fewest]
            tried = tried or [self._note(self._run_trial(self.fewest))]
            if all(one.status in CODE_FAILURES for one in tried):
                if self._are_workers_fixed:
                    self.flaw = cause_of(tried[-1])
                    return True
                self._blame_workers(tried[-1], self.fewest)
        self.flaw = self._find_flaw()
        return self.reason is not None or self.flaw is not None

    def _blame_workers(self, failure: TrialResult, config: LoaderConfig) -> None:
        """Try without workers until the rates decide whether workers are the cause of the failure of the fewest."""
        without = LoaderConfig(dataloader=DataLoaderSettings(batch_size=config.dataloader.batch_size))
        while self._trials_left and find_culprit(self.trials) is None:
            self._trials_left -= 1
            self._note(self._run_trial(without))
        if find_culprit(self.trials) == "workers":
            how = f"num_workers={config.dataloader.num_workers}: it {_shorten(failure)}"
            advice = f"{PICKLE_ADVICE}." if PICKLE_ADVICE in failure.message else ADVICE[failure.status]
            self.reason = f"num_workers > 0 fails ({how}); it works with num_workers=0. {advice}"

    def _find_flaw(self) -> Cause | None:
        """Return the failure of the data, unless it may be about batches so large that every trial fails."""
        if find_culprit(self.trials) != "data":
            return None
        failures = [one for one in self.trials if one.status in CODE_FAILURES and not one.in_step]
        busy, idle = (list(map(cause_of, side)) for side in _split(failures))
        flaw = max((one for one in busy if one in idle), key=(busy + idle).count)
        failed = {one.config.dataloader.batch_size for one in failures if cause_of(one) == flaw}
        works = self._sizes_that_work | (set() if self.fewest is None else {self.fewest.dataloader.batch_size})
        return flaw if failed & works else None

    def make_error(self, flaw: Cause) -> WorkloadError:
        """Return the error that ends a run whose data fails."""
        how = "" if self._are_workers_fixed else " without workers, too"
        text = f"The dataset fails{how}: {describe_failure(self.trials, flaw)}."
        details = next(one.details for one in self.trials if cause_of(one) == flaw)
        return WorkloadError(f"{text} Fix these samples or skip them in the dataset.", details)


def raise_if_unavoidable(result: TrialResult, workload: WorkloadRequest) -> None:
    """Raise WorkloadError if the user's code failed in a way that no configuration avoids."""
    workers, is_step = result.config.dataloader.num_workers, result.in_step
    is_device = result.status == "device_failed"
    if is_device or (result.status == "workload_failed" and (is_step or not workers)):
        what = "Training" if is_device else "The dataset"
        what = f"The training step ({workload.describe_step()})" if is_step else what
        what += " fails" if workers else " fails even without workers"
        raise WorkloadError(f"{what}: it {result.message.rstrip('.')}.", result.details)
