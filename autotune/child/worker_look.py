"""What does one worker look like from outside, once it has delivered: its CPUs, its threads, its memory?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from autotune.child.loader_building import build_plain_loader
from autotune.child.probe_workers import ROUND_BATCH_SIZE, start_worker
from autotune.child.tracebacks import shut_down_workers
from autotune.child.workload_loading import LoadedWorkload
from autotune.system.processes import measure_pss, read_thread_seconds

LOOK_BATCHES: Final = 2  # after the first, with which libraries are set up
OWN_THREADS: Final = 3  # of a worker: the one that loads, and two that send batches
MIN_SECONDS: Final = 5e-3  # of CPU time in them, that threads must take for anything to be said of them


class WorkerLook(NamedTuple):
    """A worker after its first batches; nothing where none was looked at."""

    cpus: frozenset[int] = frozenset()  # that it may use
    threads_cpu: float = 0.0  # CPU time of its other threads over that of the one that loads; 0 without libraries' own
    memory_bytes: int = 0  # its share of the machine's, without /dev/shm


def look_at_worker(workload: LoadedWorkload) -> WorkerLook:
    """Start a worker, and look at it after its first batches; loaders of a class of their own are left alone."""
    if workload.own is not None or not hasattr(os, "sched_getaffinity"):
        return WorkerLook()
    try:
        return _look(workload)
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return WorkerLook()


def _look(workload: LoadedWorkload) -> WorkerLook:
    loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers=1)
    loader.index_source.open(max_batches=LOOK_BATCHES + 3)  # it is looked at while it may still be at work
    worker, batches = start_worker(loader)
    assert worker.pid is not None  # it was started
    next(batches, None)
    before = read_thread_seconds(worker.pid)
    for _ in range(LOOK_BATCHES):
        next(batches, None)
    spent = {thread: end - before.get(thread, 0.0) for thread, end in read_thread_seconds(worker.pid).items()}
    threads_cpu = _compare_threads(spent, worker.pid)
    return WorkerLook(frozenset(os.sched_getaffinity(worker.pid)), threads_cpu, measure_pss([worker.pid]))


def _compare_threads(spent: Mapping[int, float], loading: int) -> float:
    """Give the CPU time of other threads over that of the one that loads; 0 where there are only those that send."""
    others = sum(seconds for thread, seconds in spent.items() if thread != loading)
    if len(spent) <= OWN_THREADS or others < MIN_SECONDS:
        return 0.0
    return others / max(MIN_SECONDS, spent.get(loading, 0.0))


def warn_of_affinity(look: WorkerLook) -> str | None:
    """Say which CPUs a worker may use, where they are fewer than this process's."""
    if not look.cpus or look.cpus >= (ours := os.sched_getaffinity(0)):
        return None
    return describe_affinity(ours, set(look.cpus))


def describe_affinity(ours: set[int], theirs: set[int]) -> str:
    """Say how many CPUs a worker may use, and how that comes about."""
    left = ", ".join(map(str, sorted(theirs)))
    return (
        f"A worker may use {len(theirs)} of the {len(ours)} CPUs that the training process may use (number {left}): a "
        "library bound it, as OpenMP and MKL do by KMP_AFFINITY, OMP_PROC_BIND or GOMP_CPU_AFFINITY, or when numpy is "
        "imported before torch. In worker_init_fn, os.sched_setaffinity(0, cpus) gives them back."
    )
