"""Sums up how long the step waited for single batches, and finds whether they came in bursts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from autotune.profiles.batch_waits import BatchWaits
from autotune.trial.measurement import EpochTrace

MIN_BATCHES: Final = 20  # of fewer a percentile says little
PAUSE_RATIO: Final = 1.5  # of the mean wait; a longer one is a pause
MAX_BURST_WAIT_SHARE: Final = 0.1  # of a pause: what the batches of a burst are waited for at most, as a rule
MIN_BURST_BATCHES: Final = 1.8  # from one pause to the next; fewer are no burst


def sum_up_waits(traces: Sequence[EpochTrace]) -> BatchWaits | None:
    """Sum up the waits of some epochs; None where they are too few."""
    waits = sorted(wait for trace in traces for wait in trace.batch_waits[1:])
    if len(waits) < MIN_BATCHES:
        return None
    centiles = statistics.quantiles(waits, n=100, method="inclusive")
    found = BatchWaits(p50=centiles[49], p95=centiles[94], p99=centiles[98])
    pauses = [wait for wait in waits if wait > PAUSE_RATIO * statistics.fmean(waits)]
    if len(waits) < MIN_BURST_BATCHES * len(pauses) or not pauses:
        return found
    pause = statistics.fmean(pauses)
    is_bursty = found.p50 <= MAX_BURST_WAIT_SHARE * pause
    return found.model_copy(update={"pause": pause, "pause_share": len(pauses) / len(waits)}) if is_bursty else found
