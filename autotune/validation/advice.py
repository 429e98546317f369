"""Sentences on improvements that are not settings of the loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from autotune.config import LoaderConfig
from autotune.planning.cost_model import max_useful_workers
from autotune.planning.plan import Plan
from autotune.profiles.schema import Bottleneck
from autotune.settings import SETTINGS, config_from_values, describe_config, setting_values
from autotune.units import format_bytes, format_seconds
from autotune.validation.runs import CandidateRuns

NOTABLE_WAIT_SHARE: Final = 0.3  # of the time; below it bursts do no harm
LATE_WAIT_SHARE: Final = 0.05  # of the time; below it a late process does no harm
MIN_LATE_SHARE: Final = 0.2  # of the steps in which a process is late
SAME_PROCESS_SHARE: Final = 0.8  # of the late steps; above it, it is always the same process
IO_CPU_SHARE: Final = 0.5  # CPU share below which a sample mostly waits
COLLATE_SHARE: Final = 0.25  # of loading; below it a faster collate_fn hardly helps
MAX_LINES: Final = 3
WORTHWHILE_GAIN: Final = 1.05  # predicted gain from which a larger limit is worth mentioning
THREADED_LOADING_CPUS: Final = 1.3  # CPUs that loading in one process keeps busy; above it, it starts threads
THREADED_STEP_CPUS: Final = 1.2  # CPUs that the step keeps busy; above it, its threads slow the workers down


def describe_waits(runs: CandidateRuns) -> Iterator[str]:
    """Yield sentences on batches that arrive in bursts, and on a training process that the others wait for."""
    share, waits, processes = runs.wait_share, runs.batch_waits, runs.process_waits
    if waits is not None and waits.pause_share and NOTABLE_WAIT_SHARE <= share < 1:
        yield (
            f"Batches arrive {1 / waits.pause_share:.0f} at a time, then none for {format_seconds(waits.pause)}: this "
            f"is no hang, loading is {1 / (1 - share):.1f}x too slow for the step."
        )
    late = sum(one.late_share for one in processes)
    if len(processes) < 2 or late < MIN_LATE_SHARE or share < LATE_WAIT_SHARE:
        return
    rank, last = max(enumerate(processes), key=lambda pair: pair[1].late_share)
    if last.late_share < SAME_PROCESS_SHARE * late:
        yield f"In {late:.0%} of the steps the ranks wait for one of them, not always the same: loading is slow."
    else:
        fastest = min(one.wait_seconds for one in processes)
        yield (
            f"Rank {rank} gets its batch last in {last.late_share:.0%} of the steps: it waits "
            f"{format_seconds(last.wait_seconds)} for a batch, another rank {format_seconds(fastest)}. Check its data, "
            "its CPU affinity and its disk; settings that all ranks share cannot fix it."
        )


def suggest_improvements(plan: Plan, config: LoaderConfig, bottleneck: Bottleneck) -> Iterator[str]:
    """Yield a sentence for each improvement that the profile of the workload shows, the most useful first."""
    workload, loader, is_loading = plan.workload, config.dataloader, bottleneck in ("io", "cpu")
    size = loader.batch_size or workload.probe_batch_size
    load, collate = workload.load_cost.per_batch(size), workload.collate_cost.per_batch(size)
    is_slow = workload.cpu_share < IO_CPU_SHARE and (is_loading or bottleneck == "epoch")
    if is_slow and workload.kind == "map" and not workload.has_getitems and workload.batching != "user":
        yield (
            f"Each sample waits {format_seconds(workload.load_cost.per_item_seconds)} (CPU {workload.cpu_share:.0%}): "
            "a dataset with __getitems__(indices) could fetch a whole batch at once."
        )
    if bottleneck in ("cpu", "transfer") and collate >= COLLATE_SHARE * load:
        yield (
            f"Collating takes {min(1.0, collate / load):.0%} of loading a batch ({format_seconds(collate)} of "
            f"{format_seconds(load)}): use a faster collate_fn or smaller samples (uint8, converted in the step)."
        )
    if is_loading and (lines := workload.costly_lines[:MAX_LINES]):
        named = ", ".join(f"{line.share:.0%} in {Path(line.file).name}:{line.line} (`{line.source}`)" for line in lines)
        yield f"Loading spends its time in your code: {named}."
    if is_loading and loader.num_workers:
        yield from _find_limit(plan, config, size)
    if workload.cpu_share >= THREADED_LOADING_CPUS:
        yield (
            f"Loading keeps {workload.cpu_share:.1f} CPUs busy in one process, so a library starts threads, and does "
            "so in each worker: limit them in worker_init_fn (cv2.setNumThreads(0)) or with OMP_NUM_THREADS=1."
        )
    if bottleneck == "cpu" and workload.step_cpus >= THREADED_STEP_CPUS:
        yield f"The step keeps {workload.step_cpus:.1f} CPUs busy: limit its threads with torch.set_num_threads(1)."
    if bottleneck == "epoch":
        keep = "" if loader.persistent_workers else "set persistent_workers=True, or "
        yield f"Every short epoch fills the queue again: {keep}use a sampler that repeats the data in one epoch."
    if bottleneck == "copy" and workload.h2d is not None:
        yield (
            f"Copying to the device is the bottleneck, at {format_bytes(workload.h2d.of(pinned=loader.pin_memory))}/s: "
            "send smaller samples (uint8 or float16 instead of float32, converted on the device)."
        )


def _find_limit(plan: Plan, config: LoaderConfig, batch_size: int) -> Iterator[str]:
    """Name the limit that rules out a faster configuration with more workers."""
    most = max_useful_workers(plan.workload, batch_size, plan.local_machine.usable_cpus)
    choices = SETTINGS["num_workers"].choices
    for workers in (count for count in choices if config.dataloader.num_workers < count <= most):
        values = setting_values(config) | {"num_workers": workers}
        larger = config_from_values(values, config.process.multiprocessing_context)
        excess = plan.describe_excess(larger)
        gain = plan.predict(larger) / plan.predict(config)
        if excess and gain >= WORTHWHILE_GAIN:
            yield f"{describe_config(larger)} is predicted to be {gain:.2f}x faster, but is over a limit: {excess}."
            return
