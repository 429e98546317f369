"""Counts how often the user's code fails, with workers and without, to tell whose failure it is.

The rule: the failures with workers, over the samples that were gone through with workers, are a rate. If the data were
to blame, the same rate would hold without workers. Where so few failures were seen there that chance explains it in
fewer than 1 of 20 cases (as a Poisson count), workers are to blame. Where it explains more, and the same error came
there as well, the data is. Where none came, more samples are needed: three failures in 1,000 samples with workers ask
for 1,000 samples without.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from autotune.trial.measurement import CODE_FAILURES, TrialKind, TrialResult

COUNTED: Final[tuple[TrialKind, ...]] = (*CODE_FAILURES, "device_failed")
MIN_CHANCE: Final = 0.05  # that so few failures without workers are an accident; below it workers are to blame

Blamed = Literal["workers", "data"]


class Cause(NamedTuple):
    """What makes two failures the same; the error is empty where a process died or hung."""

    kind: TrialKind
    error: str
    in_step: bool


def name_cause(result: TrialResult) -> Cause:
    """Name what a failed trial has in common with others."""
    error = result.message.partition(":")[0] if result.kind == "workload_failed" else ""
    return Cause(result.kind, error, result.in_step)


@dataclass(slots=True)
class Side:
    """What was seen with workers, or without; the samples include those of a batch that failed."""

    trials: int = 0
    samples: int = 0
    failures: Counter[Cause] = field(default_factory=Counter)

    @property
    def exposure(self) -> int:
        """Samples, at least one for each failure: a child that died may not have told how many."""
        return max(self.samples, self.failures.total())


class FailureRates:
    """The failures of a run, counted."""

    def __init__(self) -> None:
        self._with, self._without = Side(), Side()
        self._examples: dict[Cause, TrialResult] = {}
        self._sizes: defaultdict[Cause | None, set[int | None]] = defaultdict(set)  # of batches; None: that completed

    def note(self, result: TrialResult) -> None:
        """Count a trial, whatever became of it."""
        side = self._with if result.config.dataloader.num_workers else self._without
        side.trials += 1
        side.samples += _count_samples(result)
        if result.kind == "completed":
            self._sizes[None].add(result.config.dataloader.batch_size)
        if result.kind in COUNTED:
            cause = name_cause(result)
            side.failures[cause] += 1
            self._sizes[cause].add(result.config.dataloader.batch_size)
            if cause not in self._examples or self._examples[cause].index is None:
                self._examples[cause] = result

    def blame(self) -> Blamed | None:
        """Tell whether workers or the data are to blame for what failed with workers; None while it is not clear."""
        causes = [cause for cause in self._with.failures if cause.kind in CODE_FAILURES and not cause.in_step]
        failed = sum(self._with.failures[cause] for cause in causes)
        if not failed:
            return None
        seen = sum(self._without.failures[cause] for cause in causes)
        expected = failed / self._with.exposure * self._without.exposure
        if _chance_of_at_most(seen, expected) < MIN_CHANCE:
            return "workers"
        return "data" if seen else None

    def find_shared(self) -> Cause:
        """Give what failed most often of what failed with workers and without, where the data is to blame."""
        shared = [cause for cause in self._with.failures if self._without.failures[cause] and not cause.in_step]
        return max(shared, key=lambda cause: self._with.failures[cause] + self._without.failures[cause])

    def comes_and_goes(self, cause: Cause) -> bool:
        """Tell whether trials both worked and failed so with batches of one size: then it is not about the size."""
        return bool(self._sizes[cause] & self._sizes[None])

    def find_example(self, cause: Cause) -> TrialResult:
        """Give a trial that failed so, one that tells the sample where there is one."""
        return self._examples[cause]

    def describe(self, cause: Cause) -> str:
        """Say how often something fails and where, as in `about 4 of 1,920 samples raise ValueError: ...`."""
        example = self._examples[cause]
        happened = example.message.partition(". ")[0].rstrip(".")  # what follows is advice on one trial
        sides = self._list_sides(cause)
        where = "with and without workers" if len(sides) == 2 else _name_place(example)
        if not _is_counted_in_samples(example):
            who = "the training step" if cause.in_step else "it"
            return f"in {self.count(cause)} {who} {happened}, {where}"
        verb = "raises" if sum(side.failures[cause] for side in sides) == 1 else "raise"
        return f"{self.count(cause)} {verb} {happened.removeprefix('raised ')}, {where}"

    def count(self, cause: Cause) -> str:
        """Say how often something fails, as in `about 4 of 1,920 samples`, or in how many trials a process died."""
        example, sides = self._examples[cause], self._list_sides(cause)
        failed = sum(side.failures[cause] for side in sides)
        if not _is_counted_in_samples(example):
            return f"{failed} of {sum(side.trials for side in sides):,} trials"
        which = "" if example.index is None else f" (one is sample {example.index})"
        return f"about {failed} of {sum(side.exposure for side in sides):,} samples{which}"

    def _list_sides(self, cause: Cause) -> list[Side]:
        return [side for side in (self._with, self._without) if side.failures[cause]]


def _is_counted_in_samples(example: TrialResult) -> bool:
    return example.message.startswith("raised ") and not example.in_step


def _name_place(example: TrialResult) -> str:
    return "with workers" if example.config.dataloader.num_workers else "without workers"


def _count_samples(result: TrialResult) -> int:
    if result.measurement is None:
        return result.samples
    return sum(trace.samples for trace in result.measurement.epochs)


def _chance_of_at_most(count: int, expected: float) -> float:
    """Give the chance that a Poisson count with this expectation is `count` or less."""
    term = total = math.exp(-expected)
    for number in range(1, count + 1):
        term *= expected / number
        total += term
    return total
