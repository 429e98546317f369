"""What was measured of one configuration, round by round, and how it compares with another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.profiles.batch_waits import BatchWaits
from autotune.trial.measurement import Measurement, TrialResult
from autotune.trial.statistics import paired_ratio, throughput_ci95
from autotune.trial.throughput import estimate
from autotune.validation.waits import sum_up_waits

MAX_FAILURES: Final = 2  # of one configuration; the first is looked at once more, a second one was no bad luck


class CandidateRuns:
    """The measurements of one configuration, beside those of others."""

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
            self.waits.append(found.wait_share)

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

    @property
    def wait_share(self) -> float:
        """Share of the rounds that was spent waiting for data."""
        return sum(self.waits) / len(self.waits)

    @property
    def batch_waits(self) -> BatchWaits | None:
        """How long single batches were waited for; None where too few were measured."""
        return sum_up_waits([epoch for one in self.measured for epoch in one.epochs])

    def ci95(self, field: Sequence[CandidateRuns] = (), others: Sequence[CandidateRuns] = ()) -> Interval | None:
        """Give the 95 % interval of its throughput, in samples per second; None for fewer than two rounds.

        It was picked from the field by these rounds; the scatter of the others beside it tells what is usual here.
        """
        rivals = [one.scores for one in (*field, *others) if one is not self]
        return throughput_ci95(self.scores, max(1, len(field)), rivals)

    def compare(self, other: CandidateRuns, field: Sequence[CandidateRuns] = ()) -> tuple[float, Interval | None]:
        """Give the median ratio to another one in the rounds that both saw, and its 95 % interval as `ci95` does."""
        rivals = [one for one in field if one is not self and one is not other]
        ratios = [[rate / base for rate, base in zip(one.scores, other.scores, strict=False)] for one in rivals]
        seen = min(len(self.scores), len(other.scores))
        return paired_ratio(self.scores[:seen], other.scores[:seen], max(1, len(field)), ratios)

    def is_faster_than(self, other: CandidateRuns, min_speedup: float, field: Sequence[CandidateRuns] = ()) -> bool:
        """Tell whether it is faster by so much, and by more than what the measurement leaves open."""
        speedup, interval = self.compare(other, field)
        return speedup >= min_speedup and (interval is None or interval[0] > 1)

    @property
    def measured(self) -> list[Measurement]:
        """The measurements of those that worked."""
        return [result.measurement for result in self.results if result.measurement is not None]

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
        return max((one.peak_gpu_bytes for one in self.measured), default=0)

    @property
    def gpu_growth_bytes(self) -> int:
        """How much device memory still grew in the second half of a trial."""
        return max((one.gpu_growth_bytes for one in self.measured), default=0)


def find_lead(runs: Sequence[CandidateRuns]) -> CandidateRuns:
    """Give the fastest of some; the first of them where two are alike."""
    return max(runs, key=lambda one: one.rate)
