"""Predicts the memory that workers take by touching what they share with the training process.

Forked workers share the dataset with it until somebody writes. Python writes a count into every object that it looks
at, so a list of a million names is copied page by page into every worker: too slowly for a trial to show it, and
again in every worker. A copy shows as memory that becomes a worker's own while its size stays what it was.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from autotune.child.batches import count_samples
from autotune.child.errors import shut_down_workers
from autotune.child.loader import build_plain_loader
from autotune.child.probe_workers import start_worker
from autotune.child.workload import LoadedWorkload
from autotune.system.processes import PROC, read_smaps
from autotune.units import format_bytes

MIN_HEAP_BYTES: Final = 192 * 2**20  # of the training process; copies of a smaller one are not worth the time
MIN_WARN_BYTES: Final = 64 * 2**20  # of copies in one worker that are worth a warning
MIN_DETECTABLE_BYTES: Final = 2**20  # of copies seen; less may be anything
WATCH_SECONDS: Final = 0.5  # spent on one worker
SETTLING_SHARE: Final = 0.3  # of that time, in which a new worker copies what any worker copies
COW_BATCH_SIZE: Final = 32

Look = tuple[int, int]
"""Samples delivered so far, and bytes that the worker has copied by then."""
SAMPLED_ENTRIES: Final = 64  # of a collection, from which the rest is estimated
MAX_DEPTH: Final = 4  # of collections within collections
WRAPPERS: Final = ("dataset", "datasets")  # attributes by which datasets hold others
MAX_WRAPPED: Final = 4  # datasets within datasets


def predict_cow_growth(workload: LoadedWorkload) -> str | None:
    """Watch one worker, and say what it will have copied of the whole dataset, where that is much and can be seen."""
    heap = read_smaps("self")["Anonymous"]
    if heap < MIN_HEAP_BYTES or not workload.forks_workers or workload.is_opaque:
        return None
    try:
        looks = list(_watch_worker(workload))
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return None
    if not looks or looks[-1][1] - looks[0][1] < MIN_DETECTABLE_BYTES:
        return None
    rate = cow_bytes_per_sample(looks)
    samples = workload.promised_samples
    copies = heap if samples is None and rate else min(heap, int(rate * (samples or 0)))
    if copies < MIN_WARN_BYTES:
        return None
    return describe_cow_growth(rate, copies, find_largest(workload.parts.dataset, copies // 2))


def _watch_worker(workload: LoadedWorkload) -> Iterator[Look]:
    """Run one worker for a while, and look at its memory before the first batch is asked for and after each."""
    loader = build_plain_loader(workload, COW_BATCH_SIZE, workers=1)
    worker, batches = start_worker(loader)
    samples = 0
    start = time.perf_counter()
    for batch in itertools.takewhile(lambda _: time.perf_counter() < start + WATCH_SECONDS, batches):
        samples += count_samples(batch, loader.batch_size or 1)
        if time.perf_counter() > start + SETTLING_SHARE * WATCH_SECONDS:
            yield samples, read_cow_bytes(str(worker.pid))


def read_cow_bytes(pid: int | str, proc: Path = PROC) -> int:
    """Read how much a process has copied of what it shared with one other; only differences mean something.

    A page shared by two counts half in each one's proportional size, and whole when it has been copied; what a
    process allocates counts whole in both sizes.
    """
    sizes = read_smaps(pid, proc)
    return 2 * (sizes["Pss_Anon"] - sizes["Anonymous"])


def cow_bytes_per_sample(looks: list[Look]) -> float:
    """Give the bytes copied for each sample, 0 or more, from the first look to the last."""
    if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
        return 0.0
    return max(0.0, (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0]))


def describe_cow_growth(bytes_per_sample: float, worker_bytes: int, held: HeldObjects | None = None) -> str:
    """Say how much one worker will have copied in the end, of what, and what to do about it."""
    cure = "Keep names and labels in numpy arrays or tensors instead of lists and dicts."
    if held is not None:
        wrapped = f"autotune.shared({held.place})" if held.kind in ("list", "tuple") else "a numpy array or tensor"
        cure = f"Most lies in {held.describe()}: keep it in {wrapped}, which workers share."
    return (
        f"Each worker will copy up to {format_bytes(worker_bytes)} of the dataset's memory "
        f"({format_bytes(1000 * bytes_per_sample)} in 1,000 samples; 8 workers: {format_bytes(8 * worker_bytes)}), "
        f"more than short trials show: Python writes into every object that it reads. {cure}"
    )


class HeldObjects(NamedTuple):
    """A collection of many objects."""

    place: str  # as in `dataset.infos`
    kind: str  # of the collection
    entries: int
    entry_kind: str
    nbytes: int  # estimated

    def describe(self) -> str:
        """Name it for a sentence."""
        return f"`{self.place}`, a {self.kind} of {self.entries:,} objects of type {self.entry_kind}"


def find_largest(dataset: Any, min_bytes: int) -> HeldObjects | None:
    """Find the collection of a dataset that holds most memory in objects, if it is that much."""
    found = max(_list_collections(dataset, "dataset"), key=lambda held: held.nbytes, default=None)
    return found if found is not None and found.nbytes >= min_bytes else None


def _list_collections(dataset: Any, place: str, depth: int = 0) -> Iterator[HeldObjects]:
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if type(value) in (list, tuple, dict, set) and value:
            entry = next(iter(value.values() if isinstance(value, dict) else value))
            size = estimate_bytes(value)
            yield HeldObjects(f"{place}.{name}", type(value).__name__, len(value), type(entry).__name__, size)
        if name in WRAPPERS and depth < MAX_WRAPPED:
            for key, inner in enumerate(value) if isinstance(value, list | tuple) else [("", value)]:
                yield from _list_collections(inner, f"{place}.{name}{f'[{key}]' if key != '' else ''}", depth + 1)


def estimate_bytes(value: Any, depth: int = 0) -> int:
    """Estimate what an object and those within it take, from the first entries of each collection."""
    own = sys.getsizeof(value)
    if depth >= MAX_DEPTH or type(value) not in (list, tuple, dict, set, frozenset):
        return own
    parts = (value.keys(), value.values()) if type(value) is dict else (value,)
    return own + sum(_estimate_entries(part, depth) for part in parts)


def _estimate_entries(entries: Collection[Any], depth: int) -> int:
    sampled = [estimate_bytes(entry, depth + 1) for entry in itertools.islice(entries, SAMPLED_ENTRIES)]
    return sum(sampled) * len(entries) // max(1, len(sampled))
