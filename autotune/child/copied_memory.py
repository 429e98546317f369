"""Predicts how much of the dataset's memory each worker copies.

Python writes a reference count into every object that it reads, so forked workers copy a list of a million names page
by page: too slowly for a trial to show, and again in every worker.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from autotune.child.workload import LoadedWorkload
from autotune.system.processes import PROC, read_smaps
from autotune.units import format_bytes

MIN_HEAP_BYTES: Final = 192 * 2**20  # of the training process
MIN_NOTED_BYTES: Final = 64 * 2**20  # copied by one worker
MIN_UNEXPLAINED_BYTES: Final = 512 * 2**20  # copied by one worker, if no collection of objects explains it
MIN_SEEN_BYTES: Final = 2**20
MIN_SHARE: Final = 0.1  # of the copies that a collection explains, without what its entries refer to
SAMPLED_ENTRIES: Final = 64  # of a collection
MAX_WRAPPED: Final = 4  # datasets within datasets


def read_copied_bytes(pids: Iterable[int | None], proc: Path = PROC) -> int:
    """Return how much memory forked processes have copied; only differences are meaningful.

    A copied page becomes private; an allocated one also adds to the anonymous memory.
    """
    sizes = [read_smaps(pid or 0, proc) for pid in pids]
    return sum(size["Private_Dirty"] - size["Anonymous"] for size in sizes)


def describe_growth(workload: LoadedWorkload, readings: Sequence[tuple[int, int]]) -> str | None:
    """Return a note if each worker will copy much; `readings` are samples so far, and bytes copied by then."""
    if len(readings) < 2 or readings[-1][1] - readings[0][1] < MIN_SEEN_BYTES:
        return None
    rate = (readings[-1][1] - readings[0][1]) / max(1, readings[-1][0] - readings[0][0])
    heap, samples = read_smaps("self")["Anonymous"], workload.promised_samples
    copied = heap if samples is None else min(heap, int(rate * samples))
    if copied < MIN_NOTED_BYTES:
        return None
    cure = "Keep names and labels in numpy arrays or tensors instead of lists and dicts."
    size, path, value = max(_list_collections(workload.parts.dataset, "dataset"), default=(0, "", ()))
    if size <= MIN_SHARE * copied and copied < MIN_UNEXPLAINED_BYTES:
        return None  # every worker copies a little
    if size > MIN_SHARE * copied:
        entry = next(iter(value.values() if isinstance(value, dict) else value))
        kept = f"autotune.shared({path})" if isinstance(value, list | tuple) else "a numpy array or tensor"
        held = f"`{path}`, a {type(value).__name__} of {len(value):,} objects of type {type(entry).__name__}"
        cure = f"Most is in {held}: keep it in {kept}, which workers share."
    return (
        f"Each worker will copy up to {format_bytes(copied)} of the dataset's memory ({format_bytes(1000 * rate)} in "
        f"1,000 samples; 8 workers: {format_bytes(8 * copied)}), more than short trials show: Python writes a "
        f"reference count into every object that it reads. {cure}"
    )


def _list_collections(dataset: Any, path: str, depth: int = 0) -> Iterator[tuple[float, str, Any]]:
    """Yield estimated size, path and value of each collection that a dataset, or one within it, holds."""
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if type(value) in (list, tuple, dict, set) and value:
            entries = value.values() if type(value) is dict else value
            size = statistics.fmean(map(sys.getsizeof, islice(entries, SAMPLED_ENTRIES)))
            yield sys.getsizeof(value) + len(value) * size, f"{path}.{name}", value
        if name in ("dataset", "datasets") and depth < MAX_WRAPPED:
            parts = enumerate(value) if isinstance(value, list | tuple) else [("", value)]
            for key, inner in parts:
                place = f"{path}.{name}" if key == "" else f"{path}.{name}[{key}]"
                yield from _list_collections(inner, place, depth + 1)
