"""From raw batch times to the throughput of a whole training run, with its uncertainty.

A short trial flatters a loader: a full queue is handed out before the pipeline is in steady state, and the
turn-over between epochs never shows. So an epoch that was cut short is completed at its steady rate, the first
epoch (cold workers) and the later ones (persistent or restarted) are weighed as the real run has them, and
the first `num_workers * prefetch_factor` batches never count as steady.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

from autotune.messages import EpochTrace, Measurement
from autotune.schema import LoaderConfig, Value

# Student's t, two-sided 95 %, by degrees of freedom 1..30 (any table of the distribution).
_STUDENT_T: Final = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.16,
    2.145,
    2.131,
    2.12,
    2.11,
    2.101,
    2.093,
    2.086,
    2.08,
    2.074,
    2.069,
    2.064,
    2.06,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
UNSEEN_SPREAD: Final = 0.04  # relative spread of an epoch that is assumed before any is seen; measured 1 to 9 %
UNSEEN_WEIGHT: Final = 4  # degrees of freedom that the assumption counts for
ROUND_SPREAD: Final = 0.03  # relative spread of whole runs of one configuration, each in its process; measured 1 to 9 %
ROUND_WEIGHT: Final = 4  # degrees of freedom that this counts for
FEWEST_BLOCKS: Final = 4
MOST_BLOCKS: Final = 16


class Estimate(Value):
    """Throughput of a training run, estimated from one trial.

    Attributes:
        samples_per_second: The estimate.
        relative_error: Half-width of its 95 % interval as a share of it; infinite when unknown.
        wait_fraction: Share of the run spent waiting for data.
        epoch_seconds: Duration of the epochs to come, in seconds.
    """

    samples_per_second: float
    relative_error: float
    wait_fraction: float
    epoch_seconds: float

    @property
    def upper(self) -> float:
        """Upper end of the interval, samples per second."""
        return self.samples_per_second * (1 + self.relative_error)

    def is_precise(self, precision: float) -> bool:
        """Tell whether the half-width of the interval is at most this share of the estimate."""
        return self.relative_error <= precision


class Steady(Value):
    """The pace of a pipeline whose queue is neither filling nor draining.

    Attributes:
        batch_seconds: Seconds per batch.
        standard_error: Of `batch_seconds`; None when too little was seen.
        batches: Batches it was seen over.
    """

    batch_seconds: float
    standard_error: float | None
    batches: int


def student_t(degrees: int) -> float:
    """Give the two-sided 95 % quantile of Student's t.

    Args:
        degrees: Degrees of freedom, at least 1.

    Returns:
        The quantile; that of the normal distribution above 30 degrees.
    """
    return _STUDENT_T[degrees - 1] if degrees <= len(_STUDENT_T) else 1.96


def estimate(measurement: Measurement, config: LoaderConfig, epochs: int, cold_seconds: float = 0.0) -> Estimate:
    """Estimate the throughput of a training run of `epochs` epochs.

    Args:
        measurement: Raw traces of one trial; the first has cold workers.
        config: The configuration measured.
        epochs: Length of the training run in epochs, at least 1.
        cold_seconds: What the first epoch would have cost in addition in a fresh process.

    Returns:
        The estimate. An epoch of unknown length counts as endless: only the steady pace matters.
    """
    traces = measurement.epochs
    steady = measure_steady(traces, config)
    waiting = sum(trace.wait_seconds for trace in traces) / max(1e-9, sum(trace.end_seconds for trace in traces))
    samples_per_batch = sum(trace.samples for trace in traces) / max(1, sum(trace.batches for trace in traces))
    if measurement.epoch_batches is None:
        return Estimate(
            samples_per_second=samples_per_batch / steady.batch_seconds,
            relative_error=_relative(steady.standard_error, steady.batch_seconds, 2),
            wait_fraction=min(1.0, waiting),
            epoch_seconds=steady.batch_seconds,
        )
    lengths = [_complete(trace, measurement.epoch_batches, steady) for trace in traces]
    settled = _list_settled(lengths)
    ahead = max(0, epochs - len(lengths))
    total = sum(lengths[:epochs]) + ahead * statistics.fmean(settled) + cold_seconds
    samples = epochs * (measurement.epoch_samples or measurement.epoch_batches * samples_per_batch)
    return Estimate(
        samples_per_second=samples / total,
        relative_error=_relative_error(
            lengths, settled, ahead, total, _pace_error(traces, measurement, epochs, steady)
        ),
        wait_fraction=min(1.0, waiting),
        epoch_seconds=statistics.fmean(settled),
    )


def _list_settled(lengths: Sequence[float]) -> Sequence[float]:
    """List the epochs that those to come will resemble.

    The first starts the workers, and the second is often slow as well: memory is touched for the first time.
    Measured with 12 workers on two CPUs: 0.77, 0.91, 0.56, 0.56, 0.56, 0.58 s.
    """
    return lengths[min(2, len(lengths) - 1) :]


def _complete(trace: EpochTrace, epoch_batches: int, steady: Steady) -> float:
    """Seconds of the whole epoch: what was seen, and the rest at the steady pace."""
    return trace.end_seconds + max(0, epoch_batches - trace.batches) * steady.batch_seconds


def _pace_error(traces: Sequence[EpochTrace], measurement: Measurement, epochs: int, steady: Steady) -> float:
    """Standard error, in seconds, of the batches that were never run and counted at the steady pace."""
    unseen = statistics.fmean(max(0, (measurement.epoch_batches or 0) - trace.batches) for trace in traces)
    return epochs * unseen * (steady.standard_error or UNSEEN_SPREAD * steady.batch_seconds)


def _relative_error(
    lengths: Sequence[float], settled: Sequence[float], ahead: int, total: float, pace_error: float
) -> float:
    """Half-width of the 95 % interval: epochs seen vary once each, those ahead share the error of their mean."""
    spread, quantile = _blend_spread(settled, statistics.fmean(settled))
    variance = (len(lengths) + ahead) * spread**2 + (ahead * spread) ** 2 / len(settled)
    return math.hypot(quantile * math.sqrt(variance), 2.0 * pace_error) / total


def _blend_spread(lengths: Sequence[float], mean: float) -> tuple[float, float]:
    """Standard deviation of epochs and the quantile to go with it.

    Two or three epochs say little about their own spread: it is blended with what is usual, as a scaled
    inverse chi-squared prior does (Gelman et al., Bayesian Data Analysis, section 2.6).
    """
    return _blend(lengths, UNSEEN_SPREAD * mean, UNSEEN_WEIGHT)


def _blend(values: Sequence[float], usual_spread: float, weight: int) -> tuple[float, float]:
    """Blend the spread of some values with a usual one that counts for `weight` degrees of freedom."""
    seen = len(values) - 1
    squares = statistics.variance(values) * seen if seen else 0.0
    return math.sqrt((weight * usual_spread**2 + squares) / (weight + seen)), student_t(weight + seen)


def _relative(error: float | None, value: float, quantile: float) -> float:
    return math.inf if error is None else quantile * error / value


def measure_steady(traces: Sequence[EpochTrace], config: LoaderConfig) -> Steady:
    """Find the steady pace of a loader.

    Args:
        traces: Epochs of one trial.
        config: The configuration measured; it tells how long the queue is.

    Returns:
        The pace over whole rounds of workers, after the queue was handed out and before it drains; over
        everything, the start included, where the epochs are too short for that.
    """
    spans = [span for trace in traces if (span := _cut_steady(trace, config)) is not None]
    if not spans:
        return _measure_unsteady(traces)
    batches = sum(count for count, _ in spans)
    seconds = sum(times[-1] - times[0] for _, times in spans)
    return Steady(
        batch_seconds=max(1e-9, seconds / batches),
        standard_error=_block_error(max(spans, key=lambda span: span[0])[1], max(1, config.dataloader.num_workers)),
        batches=batches,
    )


def _cut_steady(trace: EpochTrace, config: LoaderConfig) -> tuple[int, tuple[float, ...]] | None:
    workers = config.dataloader.num_workers
    queue = max(1, workers * (config.dataloader.prefetch_factor or 0))
    end = trace.closed_after if trace.closed_after is not None else trace.batches - queue * bool(workers)
    rounds = (end - queue) // max(1, workers)
    if rounds < 2:
        return None
    count = rounds * max(1, workers)
    return count, trace.batch_seconds[queue - 1 : queue + count]


def _measure_unsteady(traces: Sequence[EpochTrace]) -> Steady:
    """Take everything from the start of the workers on: slower than the truth, but never the burst of a full queue."""
    batches = max(1, sum(trace.batches for trace in traces))
    seconds = sum(trace.end_seconds for trace in traces)
    return Steady(batch_seconds=max(1e-9, seconds / batches), standard_error=None, batches=batches)


def _block_error(times: tuple[float, ...], workers: int) -> float | None:
    """Standard error of seconds per batch, from the means of blocks of whole rounds."""
    rounds = (len(times) - 1) // workers
    blocks = min(MOST_BLOCKS, rounds)
    if blocks < FEWEST_BLOCKS:
        return None
    size = rounds // blocks * workers
    means = [(times[(i + 1) * size] - times[i * size]) / size for i in range(blocks)]
    return statistics.stdev(means) / math.sqrt(blocks)


def bound_samples_per_second(trace: EpochTrace, config: LoaderConfig, epoch_batches: int | None) -> float:
    """Give a throughput that a run will hardly exceed, from its first epoch.

    Args:
        trace: The first epoch so far.
        config: The configuration.
        epoch_batches: Batches of a whole epoch; None when not known.

    Returns:
        Samples per second, generous: the steady pace where it shows, else the epoch without its start;
        infinite while there is too little to judge.
    """
    if trace.batches < 3:
        return math.inf
    samples_per_batch = trace.samples / trace.batches
    if _cut_steady(trace, config) is not None:
        steady = measure_steady([trace], config)
        error = steady.standard_error or UNSEEN_SPREAD * steady.batch_seconds
        return samples_per_batch / max(1e-9, steady.batch_seconds - 3 * error)
    if trace.batches != epoch_batches:
        return math.inf
    return trace.samples / max(1e-9, trace.end_seconds - trace.batch_seconds[0])


def bound_rounds(rates: Sequence[float]) -> tuple[float, float] | None:
    """Give the 95 % interval of a throughput from rounds in processes of their own.

    Three rounds that happen to agree do not make a machine quiet: their spread is blended with a usual one, as that of
    epochs is.

    Args:
        rates: Throughput of each round, greater than zero.

    Returns:
        Lower and upper bound, or None for fewer than two rounds.
    """
    return _bound_logs([math.log(rate) for rate in rates], ROUND_SPREAD)


def _bound_logs(logs: Sequence[float], usual_spread: float) -> tuple[float, float] | None:
    if len(logs) < 2:
        return None
    spread, quantile = _blend(logs, usual_spread, ROUND_WEIGHT)
    half = quantile * spread / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean - half), math.exp(mean + half)


def ratio_of_pairs(values: Sequence[float], bases: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Compare two configurations measured in the same rounds.

    Args:
        values: Throughputs of one, a round each, greater than zero.
        bases: Throughputs of the other, in the same rounds.

    Returns:
        The median of the ratios, and their 95 % interval; None for the interval of fewer than two rounds.
    """
    logs = [math.log(value / base) for value, base in zip(values, bases, strict=True)]
    return math.exp(statistics.median(logs)), _bound_logs(logs, math.sqrt(2) * ROUND_SPREAD)
