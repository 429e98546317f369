"""Completes a profile in role workers: the costs of workers, and checks of the data that they deliver.

The process never reads a sample itself, so its workers start as those of training do, from a process that has imported
and cached nothing of the dataset. The first use of the dataset is part of their start.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

from torch.utils.data import IterableDataset, default_collate

from autotune.child.data_checks import check_workers, record_batch, watch_worker
from autotune.child.errors import make_printable, shut_down_workers
from autotune.child.loader import build_plain_loader
from autotune.child.probe import CHECKED_BATCH, MAX_CHECKED_SECONDS, SMALL_BATCH_DIVISOR, OnPhase
from autotune.child.sample_counts import check_batches
from autotune.child.workload import LoadedWorkload
from autotune.protocol.messages import ProbeCommand
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.request import Workload
from autotune.system.machine import count_whole_cpus
from autotune.system.procfs import RECEIVED_BYTES, read_file_positions, read_tcp_bytes
from autotune.units import format_seconds

MAX_STARTED_WORKERS: Final = 16
MAX_FETCH_SECONDS: Final = 0.3  # of fetching samples to transfer repeatedly
TRANSFER_SECONDS: Final = 0.25
SHARED: Final = (
    "Workers share {}, which the dataset opens before they are forked, so each may read what another one asked for. "
    "Open it in the worker, in the first call of __getitem__. dltune tries no workers unless you pass --max-workers."
)


class SharedWatch:
    """Finds files and connections that workers wrongly share: their positions move, though this process reads nothing.

    Args:
        workload: Its sampler is iterated over in this process, and may read a file.
    """

    def __init__(self, workload: LoadedWorkload) -> None:
        self.found: str | None = None
        self._is_forked, before = workload.forks_workers, _read_positions()
        samplers = workload.parts.batch_sampler, workload.parts.sampler
        with suppress(Exception):  # of the user's sampler, as in the trials
            list(islice(next((one for one in samplers if one is not None), ()), 2))
        self._positions = _read_positions()
        self._ignored = {one for one, at in self._positions.items() if before.get(one) != at}

    def note(self) -> None:
        """Note what was opened since, before workers are forked."""
        self._positions |= _read_positions()

    def look(self) -> None:
        """Look for what workers have used, if they inherit what is open."""
        if not self._is_forked:
            return
        for one, at in _read_positions().items():
            if one not in self._ignored and self._positions.get(one, at) != at:
                use = "position of" if one[1].startswith("/") else "connection to"
                self.found = self.found or f"the {use} {make_printable(one[1])}"


def _read_positions() -> dict[tuple[str, str], int]:
    return read_file_positions() | read_tcp_bytes(RECEIVED_BYTES)


def complete_profile(
    workload: LoadedWorkload, command: ProbeCommand, profile: WorkloadProfile, on_phase: OnPhase
) -> WorkloadProfile:
    """Return the profile with the costs of workers and checks of their data; values that cannot be measured remain."""
    watch = SharedWatch(workload)
    profile = _measure_workers(workload, command, profile, on_phase, watch)
    if watch.found is None:
        return profile
    notes = (SHARED.format(watch.found), *profile.notes)  # the most important one
    return profile.model_copy(update={"shared_by_workers": watch.found, "notes": notes})


def _measure_workers(
    workload: LoadedWorkload, command: ProbeCommand, profile: WorkloadProfile, on_phase: OnPhase, watch: SharedWatch
) -> WorkloadProfile:
    load_seconds = profile.load_cost.at(workload.fixed.get("batch_size") or CHECKED_BATCH)
    count = min(2 * count_whole_cpus(command.usable_cpus), MAX_STARTED_WORKERS, command.max_workers)
    if not workload.forks_workers:  # each worker has a copy of the dataset
        count = max(1, min(count, command.memory_bytes // (2 * workload.own_bytes + 1)))
    try:
        on_phase("starting a worker")
        few = time_worker_startup(workload, 1, watch)
        if watch.found is not None:  # several workers would disturb each other, or hang
            return profile
        on_phase(f"starting {count} workers")
        slope = max(0.0, time_worker_startup(workload, count, watch) - few) / (count - 1) if count > 1 else 0.0
        start = LinearCost(fixed=max(0.0, few - load_seconds - slope), per_item=slope)
        profile = profile.model_copy(update={"worker_start_cost": start})
        if not workload.forks_workers and slope > 0.2:
            note = f"Each worker takes {format_seconds(slope)} to start, since workers are not forked."
            profile = profile.model_copy(update={"notes": (*profile.notes, note)})
        if workload.batching == "batch_size" and not workload.batches_are_external:
            profile = measure_transfer(workload, profile, on_phase)
    except Exception as error:  # the trials will report it
        shut_down_workers(error)
    if workload.batches_are_external or (workload.kind == "map" and load_seconds > MAX_CHECKED_SECONDS):
        return profile
    on_phase("checking the data of workers")
    return check_workers(workload, profile, command.digests, watch.look)


def time_worker_startup(workload: LoadedWorkload, workers: int, watch: SharedWatch) -> float:
    """Time an epoch of one small batch per worker, with the start and end of the workers."""
    loader = build_plain_loader(workload, CHECKED_BATCH, workers, prefetch_factor=1)
    loader.index_source.open(max_batches=workers)
    watch.note()  # a function makes each loader with files of its own
    gc.collect()  # so that no worker copies what a full collection would touch
    started = time.perf_counter()
    batches = iter(loader)
    arrived, has_workers = sum(1 for _ in islice(batches, workers)), bool(multiprocessing.active_children())
    del batches
    seconds = time.perf_counter() - started
    if has_workers:  # else a loader of another library may read here
        watch.look()
    is_counted = workload.kind == "map" and loader.delivers_as_sampled
    check_batches(arrived, loader.index_source.batches if is_counted else None, earlier=None)
    return seconds


class ReplayDataset(IterableDataset[Any]):
    """Fetches some samples in the worker and repeats them, so that a batch costs only collation and transfer."""

    def __init__(self, dataset: Any, indices: Sequence[Any] | None, max_samples: int) -> None:
        self._dataset, self._indices, self._max_samples = dataset, indices, max_samples

    def __iter__(self) -> Iterator[Any]:
        if self._indices is None:
            source: Iterator[Any] = islice(self._dataset, self._max_samples)
        elif hasattr(self._dataset, "__getitems__"):
            source = iter(self._dataset.__getitems__(self._indices))
        else:
            source = map(self._dataset.__getitem__, self._indices)
        samples, deadline = [], time.perf_counter() + MAX_FETCH_SECONDS
        for sample in source:
            samples.append(sample)
            if time.perf_counter() > deadline:
                break
        return cycle(samples)


def measure_transfer(workload: LoadedWorkload, profile: WorkloadProfile, on_phase: OnPhase) -> WorkloadProfile:
    """Return the profile with the costs of collation and transfer, at two batch sizes if workers are forked."""
    sizes = {max(profile.largest_probed, profile.probe_batch_size)}
    if workload.forks_workers and "batch_size" not in workload.fixed:
        sizes.add(max(1, profile.probe_batch_size // SMALL_BATCH_DIVISOR))
    measured = list[tuple[int, float, float]]()
    for size in sizes:
        on_phase(f"measuring the transfer of batches of {size}")
        measured.append((size, *time_transfer(workload, size)))
    collate = LinearCost.fit([(size, seconds) for size, seconds, _ in measured])
    transfer = LinearCost.fit([(size, seconds) for size, _, seconds in measured])
    return profile.model_copy(update={"collate_cost": collate, "transfer_cost": transfer})


def time_transfer(workload: LoadedWorkload, size: int) -> tuple[float, float]:
    """Return the seconds that one worker takes to collate a batch, and what it takes beyond that."""
    parts, indices = workload.parts, None
    if workload.kind == "map":
        order: Any = parts.sampler if parts.sampler is not None else range(len(parts.dataset))  # type: ignore[arg-type]
        indices = list(islice(order, size))
    replay = Workload(
        dataset=ReplayDataset(parts.dataset, indices, size),
        collate_fn=partial(record_batch, parts.collate_fn or default_collate),
        worker_init_fn=partial(watch_worker, parts.dataset, parts.worker_init_fn),
        multiprocessing_context=workload.parts.multiprocessing_context,
    )
    moments, collates = [], []
    for batch in islice(build_plain_loader(LoadedWorkload(parts=replay), size, workers=1), 24):
        moments.append(time.perf_counter())
        collates.append(batch.collate_seconds)
        if len(moments) > 4 and moments[-1] > moments[0] + TRANSFER_SECONDS:
            break
    batch_seconds = (moments[-1] - moments[2]) / (len(moments) - 3)  # the first ones were prepared during the start
    collate_seconds = statistics.fmean(collates[2:])
    return collate_seconds, max(0.0, batch_seconds - collate_seconds)
