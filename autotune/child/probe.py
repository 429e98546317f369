"""Profiles the workload before the first trial: what a sample costs, and the throughput of the step alone."""

from __future__ import annotations

import platform
import resource
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import SequentialSampler

from autotune.child import probe_workers
from autotune.child.data_checks import compare_workers, describe_differing
from autotune.child.device import read_accelerator, read_free_memory, warn_of_device
from autotune.child.hot_code import find_costly_lines
from autotune.child.loader import build_plain_loader, count_epoch_batches
from autotune.child.probe_batches import (
    BatchSizeProfile,
    OnPhase,
    load_batches,
    measure_sample_bytes,
    profile_batch_sizes,
    usual_batch_size,
)
from autotune.child.probe_cow import predict_cow_growth
from autotune.child.probe_storage import describe_storage
from autotune.child.reading_traces import HANGS, hangs_after_reading
from autotune.child.sharding import (
    count_samples_single_process,
    describe_epochs,
    describe_idle_workers,
    workers_duplicate_data,
)
from autotune.child.step import Step
from autotune.child.timing import fit_bytes, fit_cost
from autotune.child.workload import LoadedWorkload
from autotune.protocol.messages import WORKER_PHASE, IdentityReport, ProbeCommand, Traces
from autotune.protocol.workload_profile import LinearCost, WorkloadProfile
from autotune.system.hardware import Software
from autotune.system.machine import read_memory_limit
from autotune.system.processes import read_resident
from autotune.system.software import read_own_version, read_start_method_in_force, read_thread_variables

MIN_SECONDS: Final = 1e-9
MAX_LOOK_SECONDS: Final = 1.0  # that a round's batch may take, for looks at what no throughput shows to be worth it
SHARD_COUNTS: Final = ("num_shards", "n_shards")  # attributes; Hugging Face's datasets had the second name before
VALIDATION_SPLITS: Final = ("val", "valid", "validation", "test", "dev", "eval")


class WorkerFindings(NamedTuple):
    """What was seen of workers; nothing where none were looked at."""

    cold: float | None = None  # seconds of a round before this process has met the dataset
    few: float | None = None  # of one of one worker
    many: float | None = None  # of as many as `count_round_workers` gives, as is the cold one
    differing: Sequence[int] = ()  # samples that they deliver differently
    notes: tuple[str | None, ...] = ()
    usage: probe_workers.WorkerUsage = probe_workers.WorkerUsage()


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, order: ProbeCommand, on_phase: OnPhase
) -> WorkloadProfile | Traces:
    """Measure what the cost model and the budgets need, telling `on_phase` what is going on.

    The order matters: workers are looked at before this process has met the dataset, and again afterwards. Where that
    left what they would inherit, it is given instead: another process is to be asked, and told so.
    """
    on_device = _describe_device(device)
    order = order.model_copy(update={"with_workers": order.with_workers and "num_workers" not in workload.fixed})
    found = _look_before_reading(workload, order, on_phase)
    usual, profiles = profile_batch_sizes(workload, step, device, order, on_phase)
    traces = order.traces or _look_for_hangs(workload, order, on_phase, usual)
    traces = traces if workload.forks_workers else Traces()
    if traces != Traces() and order.with_workers and order.traces is None:
        return traces
    costs = _fit_costs(usual, profiles)
    batch_seconds = costs["load_cost"].per_batch(probe_workers.ROUND_BATCH_SIZE)
    costly_lines = find_costly_lines(workload) if batch_seconds <= MAX_LOOK_SECONDS else ()
    rss_bytes = read_resident("self")[0] or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # or its peak
    if order.traces is None:
        found = _look_at_workers(workload, order, on_phase, batch_seconds)._replace(cold=found.cold)
    costs |= _fit_worker_costs(workload, costs["load_cost"], found, order.usable_cpus)
    if not traces.hangs and _enter_worker_phase(order, on_phase):
        costs |= _measure_sharing(workload, [round(profile.samples) for profile in profiles], order.usable_cpus)
    start = probe_workers.describe_start(workload, costs.get("worker_start_cost"))
    notes = (HANGS if traces.hangs else None, *found.notes, start, warn_of_device(device))
    return WorkloadProfile(
        leaves_traces=traces != Traces(),
        differing_samples=len(found.differing),
        worker_threads_cpu=found.usage.threads_cpu,
        worker_bytes=0 if workload.forks_workers else found.usage.memory_bytes,
        rss_bytes=rss_bytes,
        notes=_list_notes(workload, notes),
        costly_lines=costly_lines,
        **on_device,
        **_describe_parts(workload),
        **costs,
    )


def _describe_device(device: torch.device) -> dict[str, Any]:
    """Say what the workload meets on this device before it runs there, by the profile's fields."""
    return {
        "accelerator": read_accelerator(device),
        "software": read_software(),
        "gpu_room_bytes": read_free_memory(device),
        "pinning": device.type == "cuda",
    }


def _look_before_reading(workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase) -> WorkerFindings:
    """Look at workers as training has them: all that is looked for where this process will spoil it, else the start."""
    if order.traces is not None:
        return _look_at_workers(workload, order, on_phase)
    if not workload.forks_workers or not _enter_worker_phase(order, on_phase):  # others begin with nothing in any case
        return WorkerFindings()
    workers = probe_workers.count_round_workers(order.usable_cpus)
    return WorkerFindings(cold=probe_workers.time_worker_round(workload, workers))


def _look_for_hangs(
    workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase, usual: BatchSizeProfile
) -> Traces:
    """Give what reading left, and whether a worker that is forked now waits for it."""
    if not usual.traces.threads or not workload.forks_workers or not _enter_worker_phase(order, on_phase):
        return usual.traces
    return usual.traces.model_copy(update={"hangs": hangs_after_reading(workload, usual.load.wall)})


def _list_notes(workload: LoadedWorkload, seen: Iterable[str | None]) -> tuple[str, ...]:
    """List what is to be said of a workload, in the order in which one reads it."""
    own = workload.note
    shares = describe_idle_workers(workload), describe_epochs(workload)
    cold = describe_storage(workload.sample_counts.reads, workload.promised_samples or 0, read_memory_limit())
    return tuple(filter(None, (own, *seen, *shares, cold, warn_of_validation_data(workload))))


def _look_at_workers(
    workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase, batch_seconds: float | None = None
) -> WorkerFindings:
    """Time rounds of workers, and look for what they do that no throughput shows, unless a batch takes long.

    Where nothing was read yet, and `batch_seconds` are not known, a round tells as much.
    """
    if not _enter_worker_phase(order, on_phase):
        return WorkerFindings()
    count = probe_workers.count_round_workers(order.usable_cpus)
    few, many = (probe_workers.time_worker_round(workload, workers) for workers in (1, count))
    seconds = few if batch_seconds is None else batch_seconds
    growth = predict_cow_growth(workload)
    if seconds is None or seconds > MAX_LOOK_SECONDS:
        return WorkerFindings(few=few, many=many, notes=(growth,))
    usage = probe_workers.measure_worker(workload)
    data = compare_workers(workload, workers_first=order.traces is not None)
    cold = describe_storage(data.reads.values(), workload.promised_samples or 0, read_memory_limit())
    notes = (describe_differing(data.differing), cold, growth)
    return WorkerFindings(None, few, many, data.differing, notes, usage)


def _describe_parts(workload: LoadedWorkload) -> dict[str, Any]:
    """Say what the workload is, by the profile's fields."""
    own = workload.own
    has_own_batches = workload.batching == "user"
    return {
        "description": type(workload.parts.dataset).__qualname__,
        "kind": workload.kind,
        "samples": workload.promised_samples,
        "counted_samples": workload.sample_counts.samples,
        "epoch_batches": count_epoch_batches(build_plain_loader(workload, None), workload) if has_own_batches else None,
        "batching": workload.batching,
        "drop_last": workload.parts.drop_last,
        "has_getitems": hasattr(workload.parts.dataset, "__getitems__"),
        "shards": count_shards(workload) if workload.kind == "iterable" else None,
        "baseline": workload.baseline,
        "loader_class": None if own is None else own.name,
        "fixed_settings": dict(workload.fixed),
        "loader_decides": () if own is None else tuple(own.fixed),
        "ends_with_sampler": workload.ends_with_sampler,
        "multiprocessing_context": workload.start_method,
    }


def count_shards(workload: LoadedWorkload) -> int | None:
    """Count the pieces that a dataset shares out to its workers, as it says or was seen to; else None."""
    counts = (getattr(workload.parts.dataset, name, None) for name in SHARD_COUNTS)
    told = next((count for count in counts if type(count) is int and count > 0), None)
    return 1 if told is None and workload.sample_counts.idle_workers else told


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


def warn_of_validation_data(workload: LoadedWorkload) -> str | None:
    """Return a warning if the loader looks like one for validation."""
    dataset, signs = workload.parts.dataset, []
    if isinstance(workload.parts.sampler, SequentialSampler):
        signs.append("it is not shuffled")
    if getattr(dataset, "train", None) is False:
        signs.append("its `train` is False")
    if str(split := getattr(dataset, "split", None)) in VALIDATION_SPLITS:
        signs.append(f"its `split` is {str(split)!r}")
    if not signs:
        return None
    return f"This looks like a validation loader ({', '.join(signs)}). Tune the loader that you train with."


def _ratio(parts: Sequence[float], wholes: Sequence[float]) -> float:
    return sum(parts) / max(sum(wholes), MIN_SECONDS)


def _fit_worker_costs(
    workload: LoadedWorkload,
    load: LinearCost,
    found: WorkerFindings,
    usable_cpus: float,
) -> dict[str, Any]:
    """Fit what starting workers costs, by the profile's fields."""
    workers = probe_workers.count_round_workers(usable_cpus)
    size = workload.fixed.get("batch_size") or probe_workers.ROUND_BATCH_SIZE
    start = probe_workers.fit_worker_startup(found.few, found.many, workers, load.per_batch(size))
    warm_up = probe_workers.per_worker_warmup_seconds(found.cold, found.many, workers, usable_cpus)
    return {"first_use_seconds": warm_up} | ({} if start is None else {"worker_start_cost": start})


def _measure_sharing(workload: LoadedWorkload, sizes: Sequence[int], usable_cpus: float) -> dict[str, Any]:
    """Measure how workers share data out, and hand batches over, by the profile's fields."""
    found: dict[str, Any] = {}
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
                for size in dict.fromkeys((sizes[0], sizes[-1]) if workload.forks_workers else sizes[:1])
            ]
    except Exception:  # a sample or batch that cannot be sent: the trials with workers will meet it and name it
        return {}
    return {
        "collate_cost": fit_cost([(size, collate) for size, collate, _ in rounds]),
        "transfer_cost": fit_cost([(size, transfer) for size, _, transfer in rounds]),
    }


def identify_workload(
    workload: LoadedWorkload, device: torch.device, batch_size: int, on_phase: OnPhase
) -> IdentityReport:
    """Load batches of this size as the probe does, and measure their samples as it does."""
    batch, _, samples = load_batches(workload, usual_batch_size(workload, batch_size), on_phase)
    return IdentityReport(
        kind=workload.kind,
        samples=workload.promised_samples,
        sample_bytes=measure_sample_bytes(batch, samples),
        loader_class=None if workload.own is None else workload.own.name,
        loader_decides=() if workload.own is None else tuple(workload.own.fixed),
        software=read_software(),
        accelerator=read_accelerator(device),
    )


def read_software() -> Software:
    """Read the versions that this process runs with, and how it starts its workers."""
    return Software(
        dltune=read_own_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        start_method=read_start_method_in_force(),
        thread_variables=read_thread_variables(),
    )
