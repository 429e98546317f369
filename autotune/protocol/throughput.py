"""Throughput of a whole training run, composed from the batch times of a short trial, with a 95% interval.

A short trial overestimates a loader: the prefetched batches of a full queue arrive at once, and worker restarts between
epochs are missing. Therefore an epoch that was cut short is extrapolated at its steady-state rate, the first epoch
(cold workers) and later ones are weighted as in the run, and prefetched batches do not count as steady state.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from autotune.config import LoaderConfig
from autotune.protocol.measurement import EpochTrace, Measurement
from autotune.protocol.statistics import blend_spread, student_t

UNSEEN_SPREAD: Final = 0.04  # prior of the relative spread of epochs; measured 1% to 9%
UNSEEN_WEIGHT: Final = 4  # degrees of freedom of the prior
BATCH_SPREAD: Final = 0.15  # prior of the relative spread of batches; measured 2% to 70%
BATCH_WEIGHT: Final = 2  # degrees of freedom of the prior
MIN_BLOCKS: Final = 4
MAX_BLOCKS: Final = 8  # consecutive batches are correlated; long blocks hardly
MIN_BATCH_SECONDS: Final = 1e-9
SLOW_EPOCHS: Final = 2
SLOW_BATCHES: Final = 2  # of each worker


@dataclass(frozen=True, slots=True)
class ThroughputEstimate:
    """Throughput of a training run, estimated from one trial."""

    samples_per_second: float
    relative_error: float  # relative half-width of the 95% interval; infinite if unknown
    wait_share: float
    epoch_seconds: float  # mean of later epochs


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Seconds per batch while the queue neither fills nor drains."""

    batch_seconds: float
    half_width: float | None  # of the 95% interval of batch_seconds; None if unknown


def estimate(measurement: Measurement, config: LoaderConfig, epochs: int) -> ThroughputEstimate:
    """Estimate the throughput of a training run of `epochs` epochs; if their length is unknown, of its steady state."""
    traces = measurement.epochs
    steady = measure_steady(traces, config)
    steady_wait = _measure_wait(traces, config, steady)
    samples_per_batch = sum(trace.samples for trace in traces) / max(1, sum(trace.batches for trace in traces))
    if measurement.epoch_batches is None:
        error = math.inf if steady.half_width is None else steady.half_width / steady.batch_seconds
        wait_share = steady_wait / steady.batch_seconds
        return ThroughputEstimate(samples_per_batch / steady.batch_seconds, error, wait_share, steady.batch_seconds)
    unseen = [max(0, measurement.epoch_batches - trace.batches) for trace in traces]
    lengths = [
        trace.end_seconds + batches * steady.batch_seconds for trace, batches in zip(traces, unseen, strict=True)
    ]
    waits = [trace.wait_seconds + batches * steady_wait for trace, batches in zip(traces, unseen, strict=True)]
    first_later = min(count_slow_epochs(config, measurement.epoch_batches), len(lengths) - 1)
    later, ahead = lengths[first_later:], max(0, epochs - len(lengths))
    epoch_seconds = statistics.fmean(later)
    total = sum(lengths[:epochs]) + ahead * epoch_seconds
    wait_share = min(1.0, (sum(waits[:epochs]) + ahead * statistics.fmean(waits[first_later:])) / total)
    samples = epochs * (measurement.epoch_samples or measurement.epoch_batches * samples_per_batch)
    # Each epoch varies once, and epochs ahead share the error of their mean. Extrapolated batches share that of theirs.
    spread, quantile = blend_spread(later, UNSEEN_SPREAD * epoch_seconds, UNSEEN_WEIGHT)
    variance = (len(lengths) + ahead) * spread**2 + (ahead * spread) ** 2 / len(later)
    half_width = steady.half_width or _guess_half_width(traces, config, steady.batch_seconds)
    error = math.hypot(quantile * math.sqrt(variance), epochs * statistics.fmean(unseen) * half_width) / total
    return ThroughputEstimate(samples / total, error, wait_share, epoch_seconds)


def count_slow_epochs(config: LoaderConfig, epoch_batches: int | None) -> int:
    """Return how many epochs of a run are slower, at least, than those that follow.

    The first epoch starts the workers, and the second is often slow as well: memory is touched for the first time.
    Measured on two CPUs: 0.77, 0.91, 0.56, 0.56 s with 12 workers; with 16 workers and 12 batches in an epoch, in which
    not every worker has one, 0.75, 0.61, 0.59, 0.65, 0.54, 0.53 s.
    """
    loader, rounds = config.dataloader, 0.0
    if loader.persistent_workers and epoch_batches:
        rounds = SLOW_BATCHES * loader.num_workers / epoch_batches
    return max(SLOW_EPOCHS, math.ceil(rounds))


def measure_steady(traces: Sequence[EpochTrace], config: LoaderConfig) -> SteadyState:
    """Measure seconds per batch over whole rounds of workers, without the prefetched batches at either end.

    Epochs that are too short for that count whole, including their start; those that were cut short, up to their last
    whole round of workers, and without the first, in which the workers start, if there are others.
    """
    workers = max(1, config.dataloader.num_workers)
    windows = [window for trace in traces if (window := steady_window(trace, config)) is not None]
    if not windows:
        counting = [trace for trace in traces if trace.closed_after is None or trace.batches >= 2 * workers]
        rounds = [_measure_rounds(trace, config) for trace in counting or traces]
        batches = max(1, sum(count for count, _ in rounds))
        return SteadyState(max(MIN_BATCH_SECONDS, sum(seconds for _, seconds in rounds) / batches), half_width=None)
    batches = sum(count for count, _ in windows)
    seconds = sum(times[-1] - times[0] for _, times in windows)
    _, longest = max(windows, key=lambda window: window[0])
    return SteadyState(max(MIN_BATCH_SECONDS, seconds / batches), _half_width(longest, workers))


def steady_window(trace: EpochTrace, config: LoaderConfig) -> tuple[int, tuple[float, ...]] | None:
    """Return the number and times of the batches in steady state; None if there are none."""
    workers = config.dataloader.num_workers
    queue = max(1, workers * (config.dataloader.prefetch_factor or 0))
    end = trace.closed_after if trace.closed_after is not None else trace.batches - queue * bool(workers)
    rounds = (end - queue) // max(1, workers)
    if rounds < 2:
        return None
    count = rounds * max(1, workers)
    return count, trace.batch_seconds[queue - 1 : queue + count]


def _count_full(trace: EpochTrace, config: LoaderConfig) -> int:
    """Return the batches of an epoch without a shorter last one, which takes less time.

    If other workers load full batches meanwhile, it counts as one.
    """
    is_shorter = trace.samples < trace.batches * (config.dataloader.batch_size or 0)
    return trace.batches - (is_shorter and config.dataloader.num_workers <= 1)


def _measure_rounds(trace: EpochTrace, config: LoaderConfig) -> tuple[int, float]:
    """Return the batches of an epoch and their seconds; if it was cut short, those of the rounds that count."""
    workers, full = max(1, config.dataloader.num_workers), _count_full(trace, config)
    whole = full - full % workers
    if trace.closed_after is None or not whole:
        return trace.batches, trace.end_seconds
    if whole < 2 * workers:
        return whole, trace.batch_seconds[whole - 1]
    return whole - workers, trace.batch_seconds[whole - 1] - trace.batch_seconds[workers - 1]


def _measure_wait(traces: Sequence[EpochTrace], config: LoaderConfig, steady: SteadyState) -> float:
    """Return the mean seconds that training waits for a batch, without the first of each worker."""
    first = max(1, config.dataloader.num_workers)
    waits = [wait for trace in traces for wait in trace.batch_waits[first : _count_full(trace, config)]]
    if waits:
        return min(steady.batch_seconds, statistics.fmean(waits))
    seconds = max(MIN_BATCH_SECONDS, sum(trace.end_seconds for trace in traces))
    return steady.batch_seconds * min(1.0, sum(trace.wait_seconds for trace in traces) / seconds)


def _half_width(times: tuple[float, ...], workers: int) -> float | None:
    """Return the half-width of the 95% interval of seconds per batch, from means of blocks of whole rounds."""
    rounds = (len(times) - 1) // workers
    blocks = min(MAX_BLOCKS, rounds)
    if blocks < MIN_BLOCKS:
        return None
    size = rounds // blocks * workers
    means = [(times[(i + 1) * size] - times[i * size]) / size for i in range(blocks)]
    return student_t(blocks - 1) * statistics.stdev(means) / math.sqrt(blocks)


def _guess_half_width(traces: Sequence[EpochTrace], config: LoaderConfig, batch_seconds: float) -> float:
    """Return the half-width of the 95% interval of seconds per batch from too few rounds for `_half_width`."""
    if config.dataloader.num_workers > 1:  # whose batches arrive together
        return 2 * UNSEEN_SPREAD * batch_seconds
    later = [end - start for trace in traces for start, end in pairwise(trace.batch_seconds)]
    # The first batch of an epoch, which may start slowly, counts only if there are fewer than two others.
    batches = later if len(later) > 1 else [end for trace in traces for end in trace.batch_seconds[:1]] + later
    spread, quantile = blend_spread(batches, BATCH_SPREAD * batch_seconds, BATCH_WEIGHT)
    return quantile * spread / math.sqrt(max(1, len(batches)))


def throughput_upper_bound(trace: EpochTrace, config: LoaderConfig, epoch_batches: int | None) -> float:
    """Return an upper bound of a run's samples per second from its first epoch so far; infinite if it is too early."""
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
