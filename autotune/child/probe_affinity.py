"""May workers use the CPUs that the training process may use? A library that binds its threads can take them away."""

from __future__ import annotations

import os

from autotune.child.loader_building import build_plain_loader
from autotune.child.probe_workers import ROUND_BATCH_SIZE, start_worker
from autotune.child.tracebacks import shut_down_workers
from autotune.child.workload_loading import LoadedWorkload


def warn_of_affinity(workload: LoadedWorkload) -> str | None:
    """Start a worker, and say which CPUs it may use after its first batch, where they are fewer than this process's."""
    if workload.own is not None or not hasattr(os, "sched_getaffinity"):
        return None
    ours = os.sched_getaffinity(0)
    try:
        theirs = _read_worker_cpus(workload)
    except Exception as error:  # whatever it is, the trials with workers will meet it and name it
        shut_down_workers(error)
        return None
    return describe_affinity(ours, theirs) if theirs < ours else None


def _read_worker_cpus(workload: LoadedWorkload) -> set[int]:
    loader = build_plain_loader(workload, ROUND_BATCH_SIZE, workers=1)
    loader.index_source.open(max_batches=1)
    worker, batches = start_worker(loader)
    next(batches)
    assert worker.pid is not None  # it was started
    return os.sched_getaffinity(worker.pid)


def describe_affinity(ours: set[int], theirs: set[int]) -> str:
    """Say how many CPUs a worker may use, and how that comes about."""
    left = ", ".join(map(str, sorted(theirs)))
    return (
        f"A worker may use {len(theirs)} of the {len(ours)} CPUs that the training process may use (number {left}): a "
        "library bound it, as OpenMP and MKL do by KMP_AFFINITY, OMP_PROC_BIND or GOMP_CPU_AFFINITY, or when numpy is "
        "imported before torch. In worker_init_fn, os.sched_setaffinity(0, cpus) gives them back."
    )
