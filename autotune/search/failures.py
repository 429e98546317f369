"""Failures of the user's code: retries them, and finds out whether workers or the data cause them.

A failure of the code is retried once. If it repeats with workers, the fewest workers are tried, and if they fail too,
trials without workers follow until the rates decide. If the data were the cause, the failures per sample would be as
frequent without workers. If so few failures have a probability below 5% (as a Poisson count), workers are the cause; if
the same error occurs without workers, the data is. A resource that ran out is about one configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import WorkloadError
from autotune.protocol.measurement import CODE_FAILURES, TrialKind, TrialResult
from autotune.request import WorkloadRequest

FLAKY: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "device_failed")  # a hang costs too much to retry
MIN_PROBABILITY: Final = 0.05  # of so few failures without workers; below it workers are the cause
MAX_TRIALS_WITHOUT_WORKERS: Final = 4  # in a run, to find the cause
ADVICE: Final[dict[TrialKind, str]] = {
    "workload_failed": "Open files, connections and random state in each worker, in __getitem__ or worker_init_fn, not "
    "once in the dataset; with spawn, everything in the dataset must be picklable.",
    "crashed": "The usual cause is native code that does not survive a fork: try --set multiprocessing_context=spawn.",
    "stalled": "The usual causes are a lock held across a fork, threads of OpenMP, or a batch that cannot be pickled: "
    "try --set multiprocessing_context=spawn, and batches of tensors.",
}

RunConfig = Callable[[LoaderConfig], TrialResult]


class Cause(NamedTuple):
    """What equal failures have in common; the error is empty if a process died or hung."""

    kind: TrialKind
    error: str
    in_step: bool

    @classmethod
    def of(cls, result: TrialResult) -> Cause:
        """Return the cause of a failed trial."""
        error = result.message.partition(":")[0] if result.kind == "workload_failed" else ""
        return cls(result.kind, error, result.in_step)


class Side(NamedTuple):
    """The trials with workers, or those without."""

    failures: Counter[Cause]
    samples: int
    trials: int


def count_sides(trials: Sequence[TrialResult]) -> tuple[Side, Side]:
    """Count the trials with workers, and those without."""
    sides = []
    for has_workers in (True, False):
        chosen = [one for one in trials if bool(one.config.dataloader.num_workers) == has_workers]
        traces = [trace for one in chosen if one.measurement is not None for trace in one.measurement.epochs]
        failures = Counter(Cause.of(one) for one in chosen if one.kind in {*CODE_FAILURES, *FLAKY})
        samples = sum(trace.samples for trace in traces) + sum(one.samples for one in chosen)
        sides.append(Side(failures, max(samples, failures.total()), len(chosen)))  # not all failures report samples
    return sides[0], sides[1]


def find_culprit(trials: Sequence[TrialResult]) -> Literal["workers", "data"] | None:
    """Return the cause of the failures with workers; None if it is not clear yet."""
    busy, idle = count_sides(trials)
    causes = [cause for cause in busy.failures if cause.kind in CODE_FAILURES and not cause.in_step]
    if not causes:
        return None
    failed, seen = (sum(side.failures[cause] for cause in causes) for side in (busy, idle))
    expected = failed / busy.samples * idle.samples
    probability = math.exp(-expected) * sum(expected**count / math.factorial(count) for count in range(seen + 1))
    if probability < MIN_PROBABILITY:
        return "workers"
    return "data" if seen else None


def describe_failure(trials: Sequence[TrialResult], cause: Cause) -> str:
    """Describe a failure, as in `about 4 of 1,920 samples raise ValueError: bad header, with workers`."""
    named = zip(("with", "without"), count_sides(trials), strict=True)
    sides = {name: side for name, side in named if side.failures[cause]}
    failed, place = sum(side.failures[cause] for side in sides.values()), f"{' and '.join(sides)} workers"
    example = _find_example(trials, cause)
    happened = _first_sentence(example)
    if cause.in_step or not happened.startswith("raised "):
        ran = sum(side.trials for side in sides.values())
        return f"in {failed} of {ran:,} trials {'the training step' if cause.in_step else 'it'} {happened}, {place}"
    read, verb = sum(side.samples for side in sides.values()), "raises" if failed == 1 else "raise"
    which = "" if example.index is None else f" (one is sample {example.index})"
    return f"about {failed} of {read:,} samples{which} {verb} {happened.removeprefix('raised ')}, {place}"


def _find_example(trials: Sequence[TrialResult], cause: Cause) -> TrialResult:
    return max((one for one in trials if Cause.of(one) == cause), key=lambda one: one.index is not None)


def _first_sentence(result: TrialResult) -> str:
    return result.message.partition(". ")[0].rstrip(".")  # advice on one trial follows


class FailureCheck:
    """Retries failed trials, and finds out whether workers fail with this workload, or the data itself.

    Args:
        candidates: The configurations of the search.
        run_trial: Runs a trial for as long as one may take.

    Attributes:
        trials: The results so far.
        reason: Why no workers may be used; None if they may.
        flaw: The failure of the data itself; None if none is known.
    """

    def __init__(self, candidates: Sequence[LoaderConfig], run_trial: RunConfig) -> None:
        self.trials: list[TrialResult] = []
        self.reason: str | None = None
        self.flaw: Cause | None = None
        self._run_trial = run_trial
        self._repeated: set[Cause] = set()  # not retried any more
        self._passing: dict[Cause, None] = {}  # a retry completed
        self._fewest_failure: TrialResult | None = None  # with the fewest workers
        self._trials_left = MAX_TRIALS_WITHOUT_WORKERS
        self._fewest = min((one for one in candidates if one.dataloader.num_workers), key=_size, default=None)
        size = self._fewest.dataloader.batch_size if self._fewest is not None else None
        self._without = LoaderConfig(dataloader=DataLoaderSettings(batch_size=size))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Failures to report to the user."""
        causes = dict.fromkeys([*self._passing, self.flaw] if self.flaw is not None else self._passing)
        sentences = [describe_failure(self.trials, cause) for cause in causes]
        warnings = [f"{one[:1].upper()}{one[1:]}. A training run would crash there." for one in sentences]
        return tuple(warnings if self.reason is None else [self.reason, *warnings])

    def order(self, configs: Sequence[LoaderConfig], *, is_suspected: bool) -> list[LoaderConfig]:
        """Order the first trials: if workers are suspected, none, then the fewest, then the others."""
        if not is_suspected or self._fewest is None:
            return list(dict.fromkeys(configs))
        first = dict.fromkeys([*configs, self._fewest])
        return sorted(first, key=lambda config: (config.dataloader.num_workers > 0, config != self._fewest))

    def run(self, config: LoaderConfig, measure: RunConfig) -> TrialResult:
        """Run a trial, and a second time if its failure may be bad luck: it has not repeated itself yet."""
        first = self._note(measure(config))
        cause = Cause.of(first)
        is_retried = cause not in self._repeated or cause == self.flaw  # a flaw of the data may not be hit twice
        if first.kind not in FLAKY or not is_retried:
            return first
        second = self._note(measure(config))
        if second.kind == "completed":
            self._passing[cause] = None
        elif cause == Cause.of(second):
            self._repeated.add(cause)
        return second

    def _note(self, result: TrialResult) -> TrialResult:
        self.trials.append(result)
        return result

    def find_cause(self, result: TrialResult) -> bool:
        """Find the cause of a failure; return whether workers, or the data, have now been found to fail."""
        is_about_workers = result.kind in CODE_FAILURES and result.config.dataloader.num_workers and not result.in_step
        if self.reason is not None or self.flaw is not None or not is_about_workers:
            return False
        if self._find_flaw() is None:
            self._try_fewest(result)
        failure = self._fewest_failure
        if failure is not None and find_culprit(self.trials) == "workers":
            how = f"num_workers={failure.config.dataloader.num_workers}: it {_first_sentence(failure)}"
            text = f"num_workers > 0 fails with this dataset ({how}); it works with num_workers=0."
            self.reason = f"{text} {ADVICE[failure.kind]}"
        self.flaw = self._find_flaw()
        return self.reason is not None or self.flaw is not None

    def _try_fewest(self, result: TrialResult) -> None:
        """Try the fewest workers, and if they fail, no workers until the rates decide."""
        if any(one.config == self._fewest and one.kind not in CODE_FAILURES for one in self.trials):
            return
        if self._fewest_failure is None and self._fewest is not None:
            if result.config != self._fewest:
                result = self._note(self._run_trial(self._fewest))
            self._fewest_failure = result if result.kind in CODE_FAILURES else None
        while self._fewest_failure is not None and self._trials_left and find_culprit(self.trials) is None:
            self._trials_left -= 1
            self._note(self._run_trial(self._without))

    def _find_flaw(self) -> Cause | None:
        """Return the failure of the data, unless it may be about a batch size at which every trial fails."""
        if find_culprit(self.trials) != "data":
            return None
        busy, idle = (side.failures for side in count_sides(self.trials))
        flaw = max((one for one in busy if idle[one] and not one.in_step), key=lambda one: busy[one] + idle[one])
        completed = {one.config.dataloader.batch_size for one in self.trials if one.kind == "completed"}
        failed = {one.config.dataloader.batch_size for one in self.trials if Cause.of(one) == flaw}
        return flaw if self._fewest_failure is not None or completed & failed else None

    def make_error(self, flaw: Cause) -> WorkloadError:
        """Return the error that ends a run whose data fails."""
        text = f"The dataset fails without workers, too: {describe_failure(self.trials, flaw)}."
        details = _find_example(self.trials, flaw).details
        return WorkloadError(f"{text} Fix these samples or skip them in the dataset.", details)


def raise_if_unavoidable(result: TrialResult, workload: WorkloadRequest) -> None:
    """Raise WorkloadError if the user's code failed in a way that no configuration avoids."""
    workers, is_step = result.config.dataloader.num_workers, result.in_step
    if (not workers or is_step) and result.kind in ("workload_failed", "device_failed"):
        what = "Training" if result.kind == "device_failed" else "The dataset"
        what = f"The training step ({workload.describe_step()})" if is_step else what
        place = "" if workers else " even without workers"
        raise WorkloadError(f"{what} fails{place}: it {result.message.rstrip('.')}.", result.details)


def _size(config: LoaderConfig) -> tuple[int, int, int]:
    return config.dataloader.num_workers, config.dataloader.prefetch_factor or 0, config.dataloader.batch_size or 0
