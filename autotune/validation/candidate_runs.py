"""The runs of one configuration in the validation, and what they say of its throughput in training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.profiles.schema import BatchWaits, CandidateResult
from autotune.protocol.measurement import Measurement, TrialResult
from autotune.protocol.statistics import throughput_ci95, widen
from autotune.protocol.throughput import estimate

MAX_RUN_ERROR: Final = 0.15  # half-width of the interval of a run; one that is less precise does not show the machine
MAX_SAMPLING_ERROR: Final = 1.0  # of a run; a factor of two, if so few batches do not even show their spread
MAX_FAILURES: Final = 2  # of one configuration: the first failed run is repeated, the second rules it out
MIN_WAITS: Final = 20  # batches; percentiles of fewer are unreliable


class CandidateRuns:
    """The measurements of one configuration; the peaks are those of a profile."""

    def __init__(self, config: LoaderConfig) -> None:
        self.config = config
        self.rates = dict[int, float]()  # samples per second, by the number of the run
        self._errors = list[float]()  # relative half-widths of the 95% interval of each run
        self.measurements, self.failures, self._wait_shares = list[Measurement](), list[TrialResult](), list[float]()
        self.peak_host_bytes = self.peak_shm_bytes = self.peak_gpu_bytes = 0

    def add(self, number: int, result: TrialResult, epochs: int) -> None:
        """Add the result of run `number`; throughput is that of a training run of `epochs` epochs."""
        self.peak_host_bytes = max(self.peak_host_bytes, result.peak_host_bytes)
        self.peak_shm_bytes = max(self.peak_shm_bytes, result.peak_shm_bytes)
        if result.status != "completed":
            self.failures.append(result)
        if result.measurement is None:
            return
        found = estimate(result.measurement, result.config, epochs)
        self.rates[number] = found.samples_per_second
        self._errors.append(found.relative_error)
        self._wait_shares.append(found.wait_share)
        self.measurements.append(result.measurement)
        self.peak_gpu_bytes = max(self.peak_gpu_bytes, result.measurement.peak_gpu_bytes)

    @property
    def is_out(self) -> bool:
        """Whether it failed too often to be recommended."""
        return len(self.failures) >= MAX_FAILURES

    @property
    def rate(self) -> float:
        """Median throughput in samples per second; 0 if it never ran or is out."""
        return statistics.median(self.rates.values()) if self.rates and not self.is_out else 0.0

    @property
    def is_precise(self) -> bool:
        """Whether differences between its runs show the machine, not the few batches of a slow run."""
        return bool(self._errors) and statistics.median(self._errors) <= MAX_RUN_ERROR

    @property
    def has_epochs(self) -> bool:
        """Whether starts and ends of epochs are part of the throughput: not if all runs are of unknown length."""
        return not self.measurements or any(one.epoch_batches is not None for one in self.measurements)

    @property
    def sampling_error(self) -> float:
        """Relative half-width of the 95% interval due to the few batches of slow runs; 0 if they are enough."""
        if self.is_precise or not self._errors:
            return 0.0
        return min(MAX_SAMPLING_ERROR, statistics.median(self._errors)) / math.sqrt(len(self._errors))

    @property
    def wait_share(self) -> float:
        """Share of the time that the training loop waits for data."""
        return statistics.fmean(self._wait_shares) if self._wait_shares else 0.0

    def ci95(
        self, field: Sequence[CandidateRuns] = (), others: Sequence[CandidateRuns] = (), change: float = 1.0
    ) -> Interval | None:
        """Compute the 95% interval of its throughput in training, with the sampling error.

        `field` are all candidates, and `others` show the noise, too. `change` is how many times as fast the machine
        became before the runs.
        """
        precise = (other for other in (*field, *others) if other is not self and other.is_precise)
        scatter = [list(other.rates.values()) for other in precise]
        scatter += [[1.0, change]] if change != 1.0 and len(self.rates) > 1 else []  # one run has no interval
        return widen(throughput_ci95(list(self.rates.values()), max(1, len(field)), scatter), self.sampling_error)

    @property
    def batch_waits(self) -> BatchWaits | None:
        """Percentiles of the wait for a batch; None for few batches."""
        waits = [wait for found in self.measurements for trace in found.epochs for wait in trace.batch_waits[1:]]
        if len(waits) < MIN_WAITS:
            return None
        centiles = statistics.quantiles(waits, n=100, method="inclusive")
        return BatchWaits(p50=centiles[49], p95=centiles[94], p99=centiles[98])

    @property
    def rank_wait_seconds(self) -> tuple[float, ...]:
        """Mean wait for a batch of each training process; empty for one process."""
        by_rank = zip(*(one.ranks for one in self.measurements if one.ranks), strict=False)
        return tuple(sum(one.wait_seconds for one in runs) / max(1, sum(one.steps for one in runs)) for runs in by_rank)

    def record(self) -> CandidateResult:
        """Return the raw runs as a profile stores them."""
        failures = (f"{failure.status}: it {failure.message}" for failure in self.failures)
        return CandidateResult(config=self.config, runs=dict(self.rates), failures=tuple(failures))
