"""Are there samples that take far longer than the others, and which? One of them holds up a whole batch, in order."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Final

from autotune.child.probe_workers import single_thread
from autotune.child.sample_reads import SampleRead, measure_read
from autotune.units import format_percent, format_seconds

MIN_SAMPLES: Final = 16  # of fewer nothing is said
MIN_SECONDS: Final = 5e-3  # of a slow sample; less is the machine's doing
MIN_RATIO: Final = 5.0  # of a slow sample to the median
MAX_SLOW_SHARE: Final = 0.1  # of the samples; more are not exceptions
MIN_TIME_SHARE: Final = 0.25  # of the time, that the slow ones take
STILL_SLOW: Final = 0.5  # of what a sample took first; a second reading that takes less was not slow by itself
MAX_NAMED: Final = 3


def describe_slow_samples(dataset: Any, reads: Mapping[int, SampleRead]) -> str | None:
    """Say which of the samples that were read took far longer than the others, and do so again; None where none did.

    `reads` are by index, in their order; the first of all may have opened files, and is out.
    """
    read = {index: one.seconds for index, one in list(reads.items())[1:]}
    if len(read) < MIN_SAMPLES:
        return None
    usual = statistics.median(read.values())
    slow = [index for index, taken in read.items() if taken > max(MIN_SECONDS, MIN_RATIO * usual)]
    share = sum(read[index] for index in slow) / sum(read.values())
    if not 0 < len(slow) <= MAX_SLOW_SHARE * len(read) or share < MIN_TIME_SHARE:
        return None
    slowest = sorted(slow, key=lambda index: read[index], reverse=True)[:MAX_NAMED]
    if any(_time_again(dataset, index) < STILL_SLOW * read[index] for index in slowest):
        return None
    named = ", ".join(f"index {index}: {format_seconds(read[index])}" for index in slowest)
    return (
        f"Some samples take far longer than others: {len(slow)} of {len(read)} that were read took "
        f"{format_percent(share)} of the time ({named}; median {format_seconds(usual)}). Workers that deliver in order "
        "wait for them: make them smaller beforehand, or try in_order=False."
    )


def _time_again(dataset: Any, index: int) -> float:
    try:
        with single_thread():
            return measure_read(lambda: dataset[index])[1].seconds
    except Exception:  # whatever it is, the trials will meet it and name it
        return 0.0
