"""Failures of the user's code: retries them, and finds out whether workers, the data or one configuration cause them.

A resource that ran out is about one configuration. Code that raises or dies is retried once. If it fails again with
workers, the fewest workers are tried, and if they fail too, trials without workers follow until the rates decide. If
the data were the cause, the failures per sample would be as frequent without workers. If so few failures have a
probability below 5% (as a Poisson count), workers are the cause; if the same error occurs there, the data is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from autotune.config import DataLoaderSettings, LoaderConfig
from autotune.errors import WorkloadError
from autotune.request import WorkloadRequest
from autotune.trial.measurement import CODE_FAILURES, TrialKind, TrialResult

FLAKY: Final[tuple[TrialKind, ...]] = ("workload_failed", "crashed", "device_failed")  # a hang costs too much to retry
COUNTED: Final = {*CODE_FAILURES, *FLAKY}
MIN_PROBABILITY: Final = 0.05  # of so few failures without workers; below it workers are the cause
MAX_TRIALS_WITHOUT_WORKERS: Final = 4  # in a run, to find the cause
ADVICE: Final[dict[TrialKind, str]] = {
    "workload_failed": "Open files, connections and random state in each worker, in __getitem__ or worker_init_fn, not "
    "once in the dataset; with spawn, everything in the dataset must be picklable.",
    "crashed": "The usual cause is native code that does not survive a fork: try --set multiprocessing_context=spawn.",
    "stalled": "The usual causes are a lock held across a fork, threads of OpenMP, or a batch that cannot be pickled: "
    "try --set multiprocessing_context=spawn, and batches of tensors.",
}


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
    """Failures, samples and trials with workers, or without; the samples include those of failed batches."""

    failures: Counter[Cause]
    samples: int
    trials: int


class FailureRates:
    """Failures of a run per sample, with and without workers."""

    def __init__(self) -> None:
        self._trials: list[TrialResult] = []

    def note(self, result: TrialResult) -> None:
        """Count a trial."""
        self._trials.append(result)

    def _count_side(self, *, workers: bool) -> Side:
        chosen = [one for one in self._trials if bool(one.config.dataloader.num_workers) == workers]
        traces = [trace for one in chosen if one.measurement is not None for trace in one.measurement.epochs]
        failures = Counter(Cause.of(one) for one in chosen if one.kind in COUNTED)
        samples = sum(trace.samples for trace in traces) + sum(one.samples for one in chosen)
        return Side(failures, max(samples, failures.total()), len(chosen))  # not every failure reports its samples

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self._count_side(workers=True), self._count_side(workers=False)

    def find_culprit(self) -> Literal["workers", "data"] | None:
        """Return the cause of the failures with workers; None if it is not clear yet."""
        busy, idle = self._sides
        causes = [cause for cause in busy.failures if cause.kind in CODE_FAILURES and not cause.in_step]
        if not causes:
            return None
        failed, seen = (sum(side.failures[cause] for cause in causes) for side in (busy, idle))
        if _poisson_cdf(seen, failed / busy.samples * idle.samples) < MIN_PROBABILITY:
            return "workers"
        return "data" if seen else None

    def find_shared(self) -> Cause:
        """Return the most frequent cause that occurred with and without workers."""
        busy, idle = (side.failures for side in self._sides)
        return max((one for one in busy if idle[one] and not one.in_step), key=lambda one: busy[one] + idle[one])

    def is_intermittent(self, cause: Cause) -> bool:
        """Return whether batches of one size both failed and completed, so that the size is not the cause."""
        sizes = {one.config.dataloader.batch_size for one in self._trials if one.kind == "completed"}
        return any(one.config.dataloader.batch_size in sizes for one in self._trials if Cause.of(one) == cause)

    def find_example(self, cause: Cause) -> TrialResult:
        """Return a trial with this cause, one that names the sample if possible."""
        return max((one for one in self._trials if Cause.of(one) == cause), key=lambda one: one.index is not None)

    def describe(self, cause: Cause) -> str:
        """Describe a failure, as in `about 4 of 1,920 samples raise ValueError: bad header, with workers`."""
        happened, named = _first_sentence(self.find_example(cause)), zip(("with", "without"), self._sides, strict=True)
        place = " and ".join(name for name, side in named if side.failures[cause]) + " workers"
        if cause.in_step or not happened.startswith("raised "):
            return f"in {self.count(cause)} {'the training step' if cause.in_step else 'it'} {happened}, {place}"
        verb = "raises" if sum(side.failures[cause] for side in self._sides) == 1 else "raise"
        return f"{self.count(cause)} {verb} {happened.removeprefix('raised ')}, {place}"

    def count(self, cause: Cause) -> str:
        """Return the frequency of a failure, as in `about 4 of 1,920 samples`, or in trials if a process died."""
        example, sides = self.find_example(cause), [side for side in self._sides if side.failures[cause]]
        failed = sum(side.failures[cause] for side in sides)
        if cause.in_step or not example.message.startswith("raised "):
            return f"{failed} of {sum(side.trials for side in sides):,} trials"
        which = "" if example.index is None else f" (one is sample {example.index})"
        return f"about {failed} of {sum(side.samples for side in sides):,} samples{which}"


def _first_sentence(result: TrialResult) -> str:
    return result.message.partition(". ")[0].rstrip(".")  # advice on one trial follows


def _poisson_cdf(count: int, expected: float) -> float:
    """Return the probability of at most `count` events."""
    term = total = math.exp(-expected)
    for number in range(1, count + 1):
        term *= expected / number
        total += term
    return total


class WorkerCheck:
    """Finds out whether workers work at all for this workload, and whether the data itself fails.

    Args:
        candidates: The configurations of the search.
        run_trial: Runs a trial for as long as one may take.
        is_suspected: Whether workers hung or died while the workload was profiled.

    Attributes:
        reason: Why no workers may be used; None if they may.
        flaw: The failure of the data itself; None if none is known.
        rates: The failures so far.
    """

    def __init__(
        self,
        candidates: Sequence[LoaderConfig],
        run_trial: Callable[[LoaderConfig], TrialResult],
        *,
        is_suspected: bool = False,
    ) -> None:
        self.reason: str | None = None
        self.flaw: Cause | None = None
        self.rates = FailureRates()
        self._run_trial = run_trial
        self._is_suspected = is_suspected
        self._fewest = min((one for one in candidates if one.dataloader.num_workers), key=_size, default=None)
        size = None if self._fewest is None else self._fewest.dataloader.batch_size
        self._without = min(
            (one for one in candidates if not one.dataloader.num_workers),
            key=lambda config: abs((config.dataloader.batch_size or 0) - (size or 0)),
            default=LoaderConfig(dataloader=DataLoaderSettings(batch_size=size)),
        )
        self._trials_left = MAX_TRIALS_WITHOUT_WORKERS
        self._failure: TrialResult | None = None  # with the fewest workers
        self._workers_can_work = False
        self._repeated: set[Cause] = set()
        self._passing: dict[Cause, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Failures to report to the user."""
        causes = dict.fromkeys((*self._passing, *(() if self.flaw is None else (self.flaw,))))
        sentences = (self.rates.describe(cause) for cause in causes)
        warnings = (f"{one[:1].upper()}{one[1:]}. A training run would crash there." for one in sentences)
        return (*(() if self.reason is None else (self.reason,)), *warnings)

    def order(self, configs: Iterable[LoaderConfig]) -> list[LoaderConfig]:
        """Order the first trials: if workers are suspected, none, then the fewest, then the others."""
        if not self._is_suspected or self._fewest is None:
            return list(configs)
        first = dict.fromkeys([*configs, self._fewest])
        return sorted(first, key=lambda config: (config.dataloader.num_workers > 0, config != self._fewest))

    def note(self, result: TrialResult) -> None:
        """Count a trial."""
        self.rates.note(result)
        self._workers_can_work |= result.config == self._fewest and result.kind == "completed"

    def is_flaky(self, result: TrialResult) -> bool:
        """Return whether a failure deserves a retry: it has not repeated itself yet."""
        return result.kind in FLAKY and Cause.of(result) not in self._repeated

    def note_retry(self, first: TrialResult, second: TrialResult) -> None:
        """Note the result of a retry."""
        if second.kind == "completed":
            self._passing[Cause.of(first)] = None
        elif Cause.of(first) == Cause.of(second) != self.flaw:  # a flaw of the data is retried each time
            self._repeated.add(Cause.of(first))

    def test_workers(self, result: TrialResult) -> bool:
        """Find the cause of a failure; return whether workers, or the data, have now been found to fail."""
        about_workers = result.kind in CODE_FAILURES and result.config.dataloader.num_workers and not result.in_step
        if self.reason is not None or self.flaw is not None or not about_workers:
            return False
        if not self._workers_can_work and not self._is_data_flawed():
            self._try_fewest(result)
            while self._failure is not None and self._trials_left and self.rates.find_culprit() is None:
                self._trials_left -= 1
                self.note(self._run_trial(self._without))
        if self._failure is not None and self.rates.find_culprit() == "workers":
            count = self._failure.config.dataloader.num_workers
            fewest = f"{count} worker{'s' if count > 1 else ''}: it {_first_sentence(self._failure)}"
            advice = ADVICE[self._failure.kind]
            self.reason = f"num_workers > 0 fails with this dataset ({fewest}); it works with num_workers=0. {advice}"
        elif self._is_data_flawed():
            self.flaw = self.rates.find_shared()
            self._repeated.discard(self.flaw)
        return self.reason is not None or self.flaw is not None

    def _try_fewest(self, result: TrialResult) -> None:
        if self._failure is None and self._fewest is not None:
            if result.config != self._fewest:
                result = self._run_trial(self._fewest)
                self.note(result)
            self._failure = result if result.kind in CODE_FAILURES else None
            self._workers_can_work = self._failure is None

    def _is_data_flawed(self) -> bool:
        """Return whether the data is the cause, and not the batch size at which it fails."""
        if self.rates.find_culprit() != "data":
            return False
        return self._failure is not None or self.rates.is_intermittent(self.rates.find_shared())

    def make_error(self, flaw: Cause) -> WorkloadError:
        """Return the error that ends a run whose data fails."""
        text = f"The dataset fails without workers, too: {self.rates.describe(flaw)}."
        advice = "Fix these samples or skip them in the dataset."
        return WorkloadError(f"{text} {advice}", self.rates.find_example(flaw).details)

    def raise_if_unavoidable(self, result: TrialResult, workload: WorkloadRequest) -> None:
        """Raise WorkloadError if the user's code failed in a way that no configuration avoids."""
        workers, is_step = result.config.dataloader.num_workers, result.in_step
        if (workers and not is_step) or result.kind not in ("workload_failed", "device_failed"):
            return
        what = "Training" if result.kind == "device_failed" else "The dataset"
        what = f"The training step ({workload.describe_step()})" if is_step else what
        seen = f"Seen in {self.rates.count(Cause.of(result))}"
        place = "" if workers else " even without workers"
        raise WorkloadError(f"{what} fails{place}: it {result.message.rstrip('.')}. {seen}.", result.details)


def _size(config: LoaderConfig) -> tuple[int, int, int]:
    return config.dataloader.num_workers, config.dataloader.prefetch_factor or 0, config.dataloader.batch_size or 0
