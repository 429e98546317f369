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
from dataclasses import dataclass
from typing import Final

from autotune.config import LoaderConfig
from autotune.protocol.measurement import EpochTrace, Measurement
from autotune.protocol.statistics import blend_spread, student_t

UNSEEN_SPREAD: Final = 0.04  # relative spread of an epoch that is assumed before any is seen; measured 1 to 9 %
UNSEEN_WEIGHT: Final = 4  # degrees of freedom that the assumption counts for
MIN_BLOCKS: Final = 4
MIN_BATCH_SECONDS: Final = 1e-9
MAX_BLOCKS: Final = 8  # long ones: batches that follow one another are alike, blocks of many hardly


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputEstimate:
    """Throughput of a training run, estimated from one trial."""

    samples_per_second: float
    relative_error: float  # half-width of the 95% interval, as a share; infinite when unknown
    wait_share: float  # share of the run spent waiting for data
    epoch_seconds: float  # of the epochs to come

    @property
    def upper(self) -> float:
        """Upper end of the interval, samples per second."""
        return self.samples_per_second * (1 + self.relative_error)

    def is_precise(self, precision: float) -> bool:
        """Tell whether the half-width of the interval is at most this share of the estimate."""
        return self.relative_error <= precision


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The pace of a pipeline whose queue is neither filling nor draining."""

    batch_seconds: float
    half_width: float | None  # of the 95% interval of batch_seconds; None when too little was seen


def estimate(measurement: Measurement, config: LoaderConfig, epochs: int) -> ThroughputEstimate:
    """Estimate the throughput of a training run of `epochs` epochs.

    Args:
        measurement: Raw traces of one trial; the first has cold workers.
        config: The configuration measured.
        epochs: Length of the training run, at least 1.

    Returns:
        The estimate. An epoch of unknown length counts as endless: only the steady pace matters.
    """
    traces = measurement.epochs
    steady = measure_steady(traces, config)
    waiting = sum(trace.wait_seconds for trace in traces) / max(
        MIN_BATCH_SECONDS, sum(trace.end_seconds for trace in traces)
    )
    samples_per_batch = sum(trace.samples for trace in traces) / max(1, sum(trace.batches for trace in traces))
    if measurement.epoch_batches is None:
        return ThroughputEstimate(
            samples_per_second=samples_per_batch / steady.batch_seconds,
            relative_error=math.inf if steady.half_width is None else steady.half_width / steady.batch_seconds,
            wait_share=min(1.0, waiting),
            epoch_seconds=steady.batch_seconds,
        )
    lengths = [extrapolate_epoch(trace, measurement.epoch_batches, steady) for trace in traces]
    settled = steady_epochs(lengths)
    ahead = max(0, epochs - len(lengths))
    total = sum(lengths[:epochs]) + ahead * statistics.fmean(settled)
    samples = epochs * (measurement.epoch_samples or measurement.epoch_batches * samples_per_batch)
    return ThroughputEstimate(
        samples_per_second=samples / total,
        relative_error=_relative_error(
            lengths, settled, ahead, total, _pace_error(traces, measurement, epochs, steady)
        ),
        wait_share=min(1.0, waiting),
        epoch_seconds=statistics.fmean(settled),
    )


def steady_epochs(lengths: Sequence[float]) -> Sequence[float]:
    """List the epochs that those to come will resemble.

    The first starts the workers, and the second is often slow as well: memory is touched for the first time.
    Measured with 12 workers on two CPUs: 0.77, 0.91, 0.56, 0.56, 0.56, 0.58 s.
    """
    return lengths[min(2, len(lengths) - 1) :]


def extrapolate_epoch(trace: EpochTrace, epoch_batches: int, steady: SteadyState) -> float:
    """Seconds of the whole epoch: what was seen, and the rest at the steady pace."""
    return trace.end_seconds + max(0, epoch_batches - trace.batches) * steady.batch_seconds


def _pace_error(traces: Sequence[EpochTrace], measurement: Measurement, epochs: int, steady: SteadyState) -> float:
    """Half-width, in seconds, of the 95% interval of the batches that were not run but counted at the steady pace."""
    unseen = statistics.fmean(max(0, (measurement.epoch_batches or 0) - trace.batches) for trace in traces)
    return epochs * unseen * (steady.half_width or 2 * UNSEEN_SPREAD * steady.batch_seconds)


def _relative_error(
    lengths: Sequence[float], settled: Sequence[float], ahead: int, total: float, pace_error: float
) -> float:
    """Half-width of the 95% interval: epochs seen vary once each, those ahead share the error of their mean."""
    spread, quantile = _blend_spread(settled, statistics.fmean(settled))
    variance = (len(lengths) + ahead) * spread**2 + (ahead * spread) ** 2 / len(settled)
    return math.hypot(quantile * math.sqrt(variance), pace_error) / total


def _blend_spread(lengths: Sequence[float], mean: float) -> tuple[float, float]:
    """Standard deviation of epochs and the quantile to go with it; two or three say little about their own spread."""
    return blend_spread(lengths, UNSEEN_SPREAD * mean, UNSEEN_WEIGHT)


def measure_steady(traces: Sequence[EpochTrace], config: LoaderConfig) -> SteadyState:
    """Find the pace over whole rounds of workers, after the queue was handed out and before it drains.

    Where the epochs are too short for that, it is that over everything, the start included; of an epoch that was cut
    short, over whole rounds, as what drains of the last one takes as long as a round and is less.
    """
    spans = [span for trace in traces if (span := steady_window(trace, config)) is not None]
    if not spans:
        return _measure_unsteady(traces, max(1, config.dataloader.num_workers))
    batches = sum(count for count, _ in spans)
    seconds = sum(times[-1] - times[0] for _, times in spans)
    _, longest = max(spans, key=lambda span: span[0])
    return SteadyState(
        max(MIN_BATCH_SECONDS, seconds / batches), _bound_blocks(longest, max(1, config.dataloader.num_workers))
    )


def steady_window(trace: EpochTrace, config: LoaderConfig) -> tuple[int, tuple[float, ...]] | None:
    """Cut an epoch down to the batches between its start and its end; None where none are left."""
    workers = config.dataloader.num_workers
    queue = max(1, workers * (config.dataloader.prefetch_factor or 0))
    end = trace.closed_after if trace.closed_after is not None else trace.batches - queue * bool(workers)
    rounds = (end - queue) // max(1, workers)
    if rounds < 2:
        return None
    count = rounds * max(1, workers)
    return count, trace.batch_seconds[queue - 1 : queue + count]


def _measure_unsteady(traces: Sequence[EpochTrace], workers: int) -> SteadyState:
    """Take everything from the start of the workers on: slower than the truth, but never the burst of a full queue."""
    spans = [_take_whole_rounds(trace, workers) for trace in traces]
    batches = max(1, sum(count for count, _ in spans))
    return SteadyState(max(MIN_BATCH_SECONDS, sum(seconds for _, seconds in spans) / batches), half_width=None)


def _take_whole_rounds(trace: EpochTrace, workers: int) -> tuple[int, float]:
    """Count the batches of an epoch and their seconds; of one that was cut short, those of whole rounds of workers."""
    whole = trace.batches - trace.batches % workers
    if trace.closed_after is None or not whole:
        return trace.batches, trace.end_seconds
    return whole, trace.batch_seconds[whole - 1]


def _bound_blocks(times: tuple[float, ...], workers: int) -> float | None:
    """Half-width of the 95% interval of seconds per batch, from the means of blocks of whole rounds."""
    rounds = (len(times) - 1) // workers
    blocks = min(MAX_BLOCKS, rounds)
    if blocks < MIN_BLOCKS:
        return None
    size = rounds // blocks * workers
    means = [(times[(i + 1) * size] - times[i * size]) / size for i in range(blocks)]
    return student_t(blocks - 1) * statistics.stdev(means) / math.sqrt(blocks)


def throughput_upper_bound(trace: EpochTrace, config: LoaderConfig, epoch_batches: int | None) -> float:
    """Give the samples per second that a run will hardly exceed, from its first epoch so far.

    That is the steady pace where it shows, else the epoch without its start; infinite while there is too little to
    judge. `epoch_batches` are those of a whole epoch; None when not known.
    """
    if trace.batches < 3:
        return math.inf
    samples_per_batch = trace.samples / trace.batches
    if steady_window(trace, config) is not None:
        steady = measure_steady([trace], config)
        half = steady.half_width or 2 * UNSEEN_SPREAD * steady.batch_seconds
        return samples_per_batch / max(MIN_BATCH_SECONDS, steady.batch_seconds - 1.5 * half)
    if trace.batches != epoch_batches:
        return math.inf
    return trace.samples / max(MIN_BATCH_SECONDS, trace.end_seconds - trace.batch_seconds[0])
