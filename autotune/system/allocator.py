"""Sets the thresholds at which glibc's allocator gives memory back to the kernel, as they are in a training process.

glibc adapts two thresholds to the largest block up to 32 MiB that the process has freed (`man 3 mallopt`). It maps
larger blocks one at a time, and trims free memory at the end of the heap beyond twice that size. So a process that
loads batches above 32 MiB itself loses the memory of its samples after each batch and gets it back page by page, unless
a block that happens to lie behind them keeps it. Which of the two happens is fixed for the life of a process: with
samples of 4 MiB, 15 of 21 training runs had 156 to 222 samples/s, six had 273 to 298. Trials have the lower value
always, not by chance. Workers collate in shared memory, and both values are equal.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

MAX_KEPT_BYTES: Final = 32 * 2**20  # glibc's limit of the adaptation on 64-bit machines
MIN_MAPPED_BYTES: Final = 128 * 2**10  # glibc's first threshold; smaller blocks are never mapped one at a time
TRIM_THRESHOLD: Final = -1  # of mallopt, in bytes
MMAP_THRESHOLD: Final = -3
VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")  # environment variables that end the adaptation


def set_thresholds(sample_bytes: int, samples: int) -> None:
    """Set the thresholds of a process that loads batches of so many samples, unless the environment does.

    Once they are set, glibc adapts them no longer. So smaller batches set them too, to what they would become.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc only
    is_chosen = any(name in os.environ for name in VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is None or is_chosen or not MIN_MAPPED_BYTES <= sample_bytes <= MAX_KEPT_BYTES:
        return
    batch_bytes = sample_bytes * samples
    if batch_bytes >= MAX_KEPT_BYTES:  # its header counts as well
        mallopt(MMAP_THRESHOLD, sample_bytes // 2)  # the sample's largest tensor is hardly smaller
    else:
        mallopt(MMAP_THRESHOLD, MAX_KEPT_BYTES)
        mallopt(TRIM_THRESHOLD, 2 * batch_bytes)
