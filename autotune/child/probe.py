"""Profiles the workload before the first trial: what a sample costs, and what the step alone could reach."""

from __future__ import annotations

import resource
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import SequentialSampler

from autotune.child import probe_workers
from autotune.child.adapters import warn_of
from autotune.child.cost_fit import fit_bytes, fit_cost
from autotune.child.device import describe_accelerator, read_free_memory, warn_of_device
from autotune.child.identity import read_software
from autotune.child.loader_building import build_plain_loader, count_epoch_batches
from autotune.child.probe_affinity import warn_of_affinity
from autotune.child.probe_batches import BatchSizeProfile, OnPhase, profile_batch_sizes
from autotune.child.probe_cow import predict_cow_growth
from autotune.child.probe_data import describe_differing, find_differing_samples
from autotune.child.probe_lines import find_costly_lines
from autotune.child.probe_sharding import count_samples_single_process, describe_epochs, workers_duplicate_data
from autotune.child.shared_files import warn_of_shared_files
from autotune.child.training_step import Step
from autotune.child.workload_loading import LoadedWorkload
from autotune.system.processes import read_resident
from autotune.trial.protocol import WORKER_PHASE, ProbeCommand
from autotune.trial.workload_profile import LinearCost, WorkloadProfile

if TYPE_CHECKING:
    import torch

MIN_SECONDS: Final = 1e-9
THREADS_LEFT: Final = (
    "Reading this dataset without workers leaves threads behind, and workers that are forked afterwards may hang: "
    "have its workers started before anything else reads from it"
)
MAX_LOOK_SECONDS: Final = 1.0  # that a round's batch may take, for looks at what no throughput shows to be worth it
SHARD_COUNTS: Final = ("num_shards", "n_shards")  # attributes; Hugging Face's datasets had the second name before
VALIDATION_SPLITS: Final = ("val", "valid", "validation", "test", "dev", "eval")


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, order: ProbeCommand, on_phase: OnPhase
) -> WorkloadProfile:
    """Measure what the cost model and the budgets need, telling `on_phase` what is going on.

    The order matters: workers are looked at before this process has met the dataset, and again afterwards.
    """
    files = warn_of_shared_files(workload)  # before this process opens any by itself
    accelerator, gpu_room_bytes = describe_accelerator(device), read_free_memory(device)
    cold_seconds = None
    order = order.model_copy(update={"with_workers": order.with_workers and "num_workers" not in workload.fixed})
    if _enter_worker_phase(order, on_phase):
        cold_seconds = probe_workers.time_worker_round(workload, probe_workers.count_round_workers(order.usable_cpus))
    threads = set(threading.enumerate())
    usual, profiles = profile_batch_sizes(workload, step, device, order, on_phase)
    leaves_threads = workload.forks_workers and not threads.issuperset(threading.enumerate())
    order = order.model_copy(update={"with_workers": order.with_workers and not leaves_threads})
    costs = _fit_costs(usual, profiles)
    is_slow = costs["load_cost"].per_batch(probe_workers.ROUND_BATCH_SIZE) > MAX_LOOK_SECONDS
    lines = () if is_slow else find_costly_lines(workload)
    rss_bytes = read_resident("self")[0] or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # or its peak
    differing, seen = _look_at_workers(workload, order, on_phase, is_slow=is_slow)
    if _enter_worker_phase(order, on_phase):
        sizes = [round(profile.samples) for profile in profiles]
        costs |= _measure_worker_costs(workload, costs["load_cost"], sizes, cold_seconds, order.usable_cpus)
    own, told = workload.own and workload.own.describe(), warn_of_libraries(workload)
    epochs, doubt = describe_epochs(workload), doubt_training(workload)
    left = THREADS_LEFT if leaves_threads else None
    notes = (own, *told, workload.note, left, files, *seen, epochs, warn_of_device(device, accelerator), doubt)
    return WorkloadProfile(
        leaves_threads=leaves_threads,
        software=read_software(accelerator),
        accelerator=accelerator,
        gpu_room_bytes=gpu_room_bytes,
        pinning=device.type == "cuda",
        costly_lines=lines,
        differing_samples=len(differing),
        rss_bytes=rss_bytes,
        notes=tuple(filter(None, notes)),
        **_describe_parts(workload),
        **costs,
    )


def _look_at_workers(
    workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase, *, is_slow: bool
) -> tuple[list[int], tuple[str | None, ...]]:
    """Look for what workers do that no throughput shows: samples that they deliver differently, and what to say."""
    if not _enter_worker_phase(order, on_phase):
        return [], ()
    if is_slow:
        return [], (predict_cow_growth(workload),)
    differing = find_differing_samples(workload)
    return differing, (describe_differing(differing), predict_cow_growth(workload), warn_of_affinity(workload))


def _describe_parts(workload: LoadedWorkload) -> dict[str, Any]:
    """Say what the workload is, by the profile's fields."""
    own = workload.own
    has_own_batches = workload.batching == "user"
    return {
        "description": type(workload.parts.dataset).__qualname__,
        "kind": workload.kind,
        "samples": workload.promised_samples,
        "epoch_batches": count_epoch_batches(build_plain_loader(workload, None), workload) if has_own_batches else None,
        "batching": workload.batching,
        "drop_last": workload.parts.drop_last,
        "has_getitems": hasattr(workload.parts.dataset, "__getitems__"),
        "shards": count_shards(workload.parts.dataset) if workload.kind == "iterable" else None,
        "baseline": workload.baseline,
        "loader_class": None if own is None else own.call.name,
        "knobs": dict(workload.usual_knobs),
        "fixed_knobs": dict(workload.fixed),
        "loader_decides": () if own is None else tuple(own.fixed),
        "multiprocessing_context": workload.start_method,
    }


def count_shards(dataset: Any) -> int | None:
    """Count the pieces that a dataset shares out to its workers, as it says; None where it does not."""
    counts = (getattr(dataset, name, None) for name in SHARD_COUNTS)
    return next((count for count in counts if type(count) is int and count > 0), None)


def _enter_worker_phase(order: ProbeCommand, on_phase: OnPhase) -> bool:
    """Tell whether workers are to be looked at, and say so to `on_phase`."""
    if order.with_workers:
        on_phase(WORKER_PHASE)
    return order.with_workers


def _fit_costs(usual: BatchSizeProfile, profiles: Sequence[BatchSizeProfile]) -> dict[str, Any]:
    """Give what batches cost in this process, from the largest to the smallest, by the profile's fields."""
    return {
        "probe_batch_size": max(1, round(usual.samples)),
        "largest_probed": round(profiles[0].samples),
        "load_cost": fit_cost([(profile.samples, profile.load.wall) for profile in profiles]),
        "cpu_share": _ratio([profile.load.cpu for profile in profiles], [profile.load.wall for profile in profiles]),
        "step_cost": fit_cost([(profile.samples, profile.step.wall) for profile in profiles]),
        "step_cpus": _ratio([usual.step.cpu], [usual.step.wall]),
        "h2d": profiles[0].h2d,
        "gpu_bytes": fit_bytes([(profile.samples, profile.peak_gpu_bytes) for profile in profiles]),
        "sample_bytes": usual.sample_bytes,
        "batch_tensors": usual.tensors,
        "on_accelerator": usual.on_accelerator,
    }


def warn_of_libraries(workload: LoadedWorkload) -> list[str]:
    """Say what is known of the measurements of other libraries' loaders and datasets."""
    made = [] if workload.own is None else [workload.own.cls]
    classes = [*made, type(workload.parts.dataset)]
    return list(dict.fromkeys(filter(None, map(warn_of, classes))))


def doubt_training(workload: LoadedWorkload) -> str | None:
    """Ask whether this is the loader for validation, where something says so."""
    dataset, signs = workload.parts.dataset, []
    if isinstance(workload.parts.sampler, SequentialSampler):
        signs.append("it is not shuffled")
    if getattr(dataset, "train", None) is False:
        signs.append("its `train` is False")
    if str(split := getattr(dataset, "split", None)) in VALIDATION_SPLITS:
        signs.append(f"its `split` is {str(split)!r}")
    if not signs:
        return None
    return f"Is this the data for validation ({', '.join(signs)})? What is tuned should be what trains."


def _ratio(parts: Sequence[float], wholes: Sequence[float]) -> float:
    return sum(parts) / max(sum(wholes), MIN_SECONDS)


def _measure_worker_costs(
    workload: LoadedWorkload, load: LinearCost, sizes: Sequence[int], cold_seconds: float | None, usable_cpus: float
) -> dict[str, Any]:
    """Measure what workers cost, by the profile's fields."""
    workers = probe_workers.count_round_workers(usable_cpus)
    few, many = probe_workers.time_worker_round(workload, 1), probe_workers.time_worker_round(workload, workers)
    size = workload.fixed.get("batch_size") or probe_workers.ROUND_BATCH_SIZE
    start = probe_workers.fit_worker_startup(few, many, workers, load.per_batch(size))
    found: dict[str, Any] = {} if start is None else {"worker_start_cost": start}
    found["first_use_seconds"] = probe_workers.per_worker_warmup_seconds(cold_seconds, many, workers, usable_cpus)
    if workload.kind == "iterable" and not workload.is_opaque:
        count_samples_single_process(workload)
        found["workers_duplicate_data"] = workers_duplicate_data(workload)
    found["manager_seconds"] = probe_workers.measure_manager_start(usable_cpus)
    if workload.batching == "batch_size" and not workload.is_opaque:
        found |= _probe_transfer(workload, sizes)
    return found


def _probe_transfer(workload: LoadedWorkload, sizes: Sequence[int]) -> dict[str, LinearCost]:
    """Fit collating and handing over to the batch sizes that were looked at."""
    with probe_workers.single_thread():
        samples = probe_workers.fetch_samples(workload, max(sizes))
    if not samples:
        return {}
    try:
        with probe_workers.single_thread():
            rounds = [
                (size, *probe_workers.time_worker_transfer(workload, samples, size))
                for size in dict.fromkeys((sizes[0], sizes[-1]))
            ]
    except Exception:  # a sample or batch that cannot be sent: the trials with workers will meet it and name it
        return {}
    return {
        "collate_cost": fit_cost([(size, collate) for size, collate, _ in rounds]),
        "transfer_cost": fit_cost([(size, transfer) for size, _, transfer in rounds]),
    }
