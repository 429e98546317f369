"""Profiles the workload before the first trial: what a sample costs, and what the step alone could reach."""

from __future__ import annotations

import math
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch

from autotune.child.device import can_pin, read_accelerator, read_free_memory, read_peak, reset_peak, synchronize
from autotune.child.probe_cow import predict_cow_growth
from autotune.child.probe_h2d import CudaBench, measure_copies, time_often
from autotune.child.probe_workers import (
    ROUND_SIZE,
    count_round_workers,
    count_samples_single_process,
    describe_epochs,
    fetch_samples,
    fit_worker_startup,
    measure_manager_start,
    share_first_use,
    single_thread,
    time_worker_round,
    time_worker_transfer,
    workers_duplicate_data,
)
from autotune.child.shared_files import foresee_shared_files
from autotune.child.training_step import Step
from autotune.child.workload_loading import LoadedWorkload, build_loader, count_batches, count_samples_promised
from autotune.config import DataLoaderSettings, FrozenModel, LoaderConfig, StartMethod
from autotune.errors import WorkloadError
from autotune.profiles.batches import count_bytes, count_samples, find_tensors, move_batch
from autotune.system.gpus import GpuState, read_gpu_state
from autotune.system.hardware import Accelerator, Software
from autotune.system.versions import read_own_version, read_start_method_in_force
from autotune.trial.protocol import WORKER_PHASE, ProbeCommand
from autotune.trial.workload_profile import H2DBandwidth, LinearBytes, LinearCost, WorkloadProfile
from autotune.units import format_percent

LOAD_SECONDS: Final = 0.8  # spent on timing batches of one size
STEP_SECONDS: Final = 0.25  # spent on timing the step at one size
QUICK_SECONDS: Final = 0.2  # for one batch of the largest size and its step; a slower one is not worth the wait
MAX_BATCHES: Final = 12
BUSY: Final = 0.1  # share of the time; less is the driver's own
NEGLIGIBLE: Final = 1e-3  # of the largest value; the error of a smaller one is not taken relative to itself
SMALL_BATCH_DIVISOR: Final = 4  # the second batch size is this many times smaller

OnPhase = Callable[[str], None]


class BatchSizeProfile(FrozenModel):
    """What batches of one size cost.

    Attributes:
        samples: Mean samples in a batch.
        load_seconds: To load and collate one, mean.
        cpu_seconds: CPU time of that, mean.
        step_seconds: The step on it, median.
        step_cpu_seconds: CPU time of that, all threads, mean.
        sample_bytes: Bytes of tensors per sample.
        tensors: Tensors in a batch.
        on_accelerator: Whether it is on the accelerator already.
        copies: How fast it gets there; None on the CPU.
        peak_gpu_bytes: Device memory that the allocator held for a step on it; 0 on the CPU.
    """

    samples: float
    load_seconds: float
    cpu_seconds: float
    step_seconds: float
    step_cpu_seconds: float
    sample_bytes: int
    tensors: int
    on_accelerator: bool
    copies: H2DBandwidth | None = None
    peak_gpu_bytes: int = 0


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, order: ProbeCommand, on_phase: OnPhase
) -> WorkloadProfile:
    """Measure what the cost model and the limits need.

    Args:
        workload: The user's pipeline.
        step: What consumes the batches.
        device: Where the step runs.
        order: Which batch sizes to measure with.
        on_phase: Called with words that say what is going on.

    Returns:
        The profile.

    Raises:
        WorkloadError: The dataset delivers no batch at all.
        Exception: Whatever dataset, collate or step raise.
    """
    files = foresee_shared_files(workload)  # before this process opens any by itself
    accelerator, room = _describe_accelerator(device), read_free_memory(device)
    cold = _time_cold_round(workload, order, on_phase)
    large, profiles = _profile_sizes(workload, step, device, order, on_phase)
    load = fit_cost([(profile.samples, profile.load_seconds) for profile in profiles])
    rss_bytes = _read_resident_bytes()
    seen = InProcessCosts(load=load, sizes=[round(profile.samples) for profile in profiles], cold_seconds=cold)
    copies = _foresee(workload, order, on_phase)
    workers = _probe_workers(workload, seen, order.usable_cpus, on_phase) if order.with_workers else {}
    return WorkloadProfile(
        description=type(workload.parts.dataset).__qualname__,
        kind=workload.kind,
        samples=count_samples_promised(workload),
        epoch_batches=_count_own_batches(workload),
        batching=workload.batching,
        drop_last=workload.parts.drop_last,
        probe_batch_size=max(1, round(large.samples)),
        largest_probed=round(profiles[0].samples),
        load_cost=load,
        cpu_share=_share([profile.cpu_seconds for profile in profiles], [profile.load_seconds for profile in profiles]),
        step_cost=fit_cost([(profile.samples, profile.step_seconds) for profile in profiles]),
        step_cpus=_share([large.step_cpu_seconds], [large.step_seconds]),
        h2d=profiles[0].copies,
        gpu_bytes=fit_bytes([(profile.samples, profile.peak_gpu_bytes) for profile in profiles]),
        sample_bytes=large.sample_bytes,
        batch_tensors=large.tensors,
        on_accelerator=large.on_accelerator,
        has_getitems=hasattr(workload.parts.dataset, "__getitems__"),
        baseline=workload.baseline,
        multiprocessing_context=cast("StartMethod | None", workload.parts.multiprocessing_context),
        software=_read_software(accelerator),
        accelerator=accelerator,
        gpu_room_bytes=room,
        pinning=can_pin(device),
        rss_bytes=rss_bytes,
        notes=(*filter(None, [files]), *copies, *describe_epochs(workload), *_warn_of_device(device, accelerator)),
        **workers,
    )


class InProcessCosts(FrozenModel):
    """What the training process found before workers are looked at."""

    load: LinearCost
    sizes: list[int]
    cold_seconds: float | None


def _time_cold_round(workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase) -> float | None:
    """Time a round of workers while this process has not met the dataset, as in a training run."""
    if not order.with_workers:
        return None
    on_phase(WORKER_PHASE)
    return time_worker_round(workload, count_round_workers(order.usable_cpus))


def _probe_workers(
    workload: LoadedWorkload, seen: InProcessCosts, usable_cpus: float, on_phase: OnPhase
) -> dict[str, Any]:
    """Measure what workers cost; the names are those of the profile's fields."""
    on_phase(WORKER_PHASE)
    workers = count_round_workers(usable_cpus)
    few, many = time_worker_round(workload, 1), time_worker_round(workload, workers)
    start = fit_worker_startup(few, many, workers, seen.load.per_batch(ROUND_SIZE))
    found: dict[str, Any] = {} if start is None else {"worker_start_cost": start}
    found["first_use_seconds"] = share_first_use(seen.cold_seconds, many, workers, usable_cpus)
    if workload.kind == "iterable":
        count_samples_single_process(workload)
        found["workers_duplicate_data"] = workers_duplicate_data(workload)
    found["manager_seconds"] = measure_manager_start(usable_cpus)
    if workload.batching == "batch_size":
        found |= _probe_handover(workload, seen.sizes)
    return found


def _foresee(workload: LoadedWorkload, order: ProbeCommand, on_phase: OnPhase) -> tuple[str, ...]:
    """List what a long run will meet and a short trial does not."""
    if not order.with_workers:
        return ()
    on_phase(WORKER_PHASE)
    warning = predict_cow_growth(workload)
    return () if warning is None else (warning,)


def _probe_handover(workload: LoadedWorkload, sizes: Sequence[int]) -> dict[str, LinearCost]:
    """Fit collating and handing over to the batch sizes that were looked at."""
    with single_thread():
        samples = fetch_samples(workload, max(sizes))
    if not samples:
        return {}
    try:
        with single_thread():
            rounds = [
                (size, *time_worker_transfer(workload, samples, size)) for size in dict.fromkeys((sizes[0], sizes[-1]))
            ]
    except Exception:  # a sample or batch that cannot be sent: the trials with workers will meet it and name it
        return {}
    return {
        "collate_cost": fit_cost([(size, collate) for size, collate, _ in rounds]),
        "transfer_cost": fit_cost([(size, transfer) for size, _, transfer in rounds]),
    }


def _share(parts: Sequence[float], wholes: Sequence[float]) -> float:
    return sum(parts) / max(sum(wholes), 1e-9)


def _choose_sizes(workload: LoadedWorkload, batch_size: int) -> list[int | None]:
    if workload.batching == "user":
        return [None]
    large = _clip_to_samples(batch_size, workload)
    small = max(1, large // SMALL_BATCH_DIVISOR)
    return [large] if small == large else [large, small]


def _clip_to_samples(batch_size: int, workload: LoadedWorkload) -> int:
    samples = count_samples_promised(workload)
    return min(batch_size, samples) if samples else batch_size


def _profile_sizes(
    workload: LoadedWorkload, step: Step, device: torch.device, order: ProbeCommand, on_phase: OnPhase
) -> tuple[BatchSizeProfile, list[BatchSizeProfile]]:
    """Profile the usual batch size, a smaller one, and the largest unless that takes long; the usual, and all of them.

    They are ordered from the largest to the smallest.
    """
    sizes = _choose_sizes(workload, order.batch_size)
    profiles = [_profile_size(workload, step, device, size, on_phase) for size in sizes]
    large = profiles[0]
    largest = _clip_to_samples(order.largest, workload)
    soon = large.load_seconds + large.step_seconds < QUICK_SECONDS * large.samples / largest
    if workload.batching == "batch_size" and soon and largest > large.samples:
        profiles.insert(0, _profile_size(workload, step, device, largest, on_phase))
    return large, profiles


def _profile_size(
    workload: LoadedWorkload, step: Step, device: torch.device, size: int | None, on_phase: OnPhase
) -> BatchSizeProfile:
    on_phase(f"loading batches of {size}" if size else "loading batches")
    loader = build_loader(workload, LoaderConfig(dataloader=DataLoaderSettings(batch_size=size)))
    loads: list[float] = []
    cpus: list[float] = []
    samples: list[int] = []
    is_map = workload.kind == "map"
    batch: Any = None
    iterator = iter(loader)
    deadline = time.perf_counter() + LOAD_SECONDS
    with single_thread():
        while len(loads) < MAX_BATCHES and (len(loads) < 2 or time.perf_counter() < deadline):
            wall, busy = time.perf_counter(), read_cpu_seconds()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            loads.append(time.perf_counter() - wall)
            cpus.append(read_cpu_seconds() - busy)
            counted = (
                loader.gate.count_samples(len(loads)) - sum(samples) if is_map else count_samples(batch, size or 1)
            )
            samples.append(counted)
            on_phase(f"loaded {len(loads)} batches")
    _check_arrivals(loader.gate.batches if is_map else None, len(loads))
    on_phase("running the step")
    warm = slice(1, None) if len(loads) > 1 else slice(None)
    reset_peak(device)
    step_seconds, step_cpu_seconds = _time_step(step, batch, device)
    peak = read_peak(device)
    on_phase("copying to the device")
    return BatchSizeProfile(
        samples=statistics.fmean(samples),
        load_seconds=statistics.fmean(loads[warm]),
        cpu_seconds=statistics.fmean(cpus[warm]),
        step_seconds=step_seconds,
        step_cpu_seconds=step_cpu_seconds,
        sample_bytes=count_bytes(batch) // max(1, samples[-1]),
        tensors=sum(1 for _ in find_tensors(batch)),
        on_accelerator=any(tensor.device.type != "cpu" for tensor in find_tensors(batch)),
        copies=measure_copies(batch, CudaBench(device)) if device.type == "cuda" else None,
        peak_gpu_bytes=peak,
    )


def _check_arrivals(promised: int | None, arrived: int) -> None:
    """Refuse an epoch that ended before the first batch, or before the last one that the sampler handed out."""
    if promised is not None and promised > arrived:
        raise WorkloadError(
            f"The dataset ended an epoch after {arrived} batches without an error. A StopIteration raised inside "
            "__getitem__ or collate_fn does this: let it raise another error."
        )
    if not arrived:
        raise WorkloadError(
            "The dataset delivered no batch at all: it is empty, it is shorter than one batch with drop_last, or it "
            "can be gone through only once and must start anew in every __iter__."
        )


def _time_step(step: Step, batch: Any, device: torch.device) -> tuple[float, float]:
    """Time the step on a batch that is always ready, after runs that warm it up: wall and CPU seconds."""
    if device.type != "cpu":
        return _time_step_on_device(step, batch, device)
    times: list[float] = []
    busy: list[float] = []
    deadline = time.perf_counter() + STEP_SECONDS
    while len(times) < 5 or (time.perf_counter() < deadline and len(times) < 100):
        started, busy_before = time.perf_counter(), read_cpu_seconds()
        step(batch)
        times.append(time.perf_counter() - started)
        busy.append(read_cpu_seconds() - busy_before)
        if len(times) > 2 and time.perf_counter() > deadline:
            break
    return statistics.median(times[2:]), statistics.median(busy[2:])


def read_cpu_seconds() -> float:
    """Read the CPU time of this process and of the programs that it started and waited for, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _time_step_on_device(step: Step, batch: Any, device: torch.device) -> tuple[float, float]:
    """Time many steps on a batch that is on the device, with one synchronisation for all of them."""
    step(batch)  # as it comes; an error in it is the user's
    try:
        resident = move_batch(batch, device)
        step(resident)
        synchronize(device)
    except (TypeError, AttributeError):  # it takes a batch only as the loader delivers it
        resident = batch
    busy, started = read_cpu_seconds(), time.perf_counter()
    seconds = time_often(lambda: step(resident), lambda: synchronize(device))
    cpus = (read_cpu_seconds() - busy) / max(1e-9, time.perf_counter() - started)
    return seconds, seconds * cpus


def fit_cost(points: Sequence[tuple[float, float]]) -> LinearCost:
    """Fit the seconds that batches of some sizes take."""
    fixed, slope = _fit_line(points)
    return LinearCost(fixed_seconds=fixed, per_item_seconds=slope)


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit `fixed + size * slope` to (size, value), by least squares of relative errors, neither part negative."""
    largest = max(value for _, value in points)
    weights = [1 / max(value, NEGLIGIBLE * largest, 1e-9) ** 2 for _, value in points]
    mean_size, mean_value = (_average(weights, column) for column in zip(*points, strict=True))
    beside = [(size - mean_size, value - mean_value) for size, value in points]
    spread = _average(weights, [size**2 for size, _ in beside])
    if spread == 0.0:  # one size tells no fixed part
        return 0.0, mean_value / max(mean_size, 1e-9)
    slope = max(0.0, _average(weights, [size * value for size, value in beside]) / spread)
    if slope * mean_size <= mean_value:
        return mean_value - slope * mean_size, slope
    rise = _average(weights, [size * value for size, value in points])
    return 0.0, rise / _average(weights, [size**2 for size, _ in points])


def _average(weights: Sequence[float], values: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def fit_bytes(points: Sequence[tuple[float, int]]) -> LinearBytes:
    """Fit the device memory that batches of some sizes take, and no size less than it was seen to take."""
    fixed, slope = _fit_line([(size, float(found)) for size, found in points])
    lift = max(found - (fixed + slope * size) for size, found in points)
    return LinearBytes(fixed_bytes=math.ceil(fixed + max(0.0, lift)), sample_bytes=math.ceil(slope))


def _describe_accelerator(device: torch.device) -> Accelerator | None:
    """Describe the accelerator, with what NVML adds to it; our own process is one of those that use it by now."""
    found = read_accelerator(device)
    if found is None or device.type != "cuda":
        return found
    state = read_gpu_state(found.uuid or "") or GpuState()
    return found.model_copy(
        update={
            "driver": state.driver,
            "pcie": state.pcie,
            "other_processes": max(0, (state.processes or 0) - 1),
            "others_busy": state.utilization or 0.0,
        }
    )


def _warn_of_device(device: torch.device, accelerator: Accelerator | None) -> tuple[str, ...]:
    """List what makes numbers of this device less sure."""
    if accelerator is None:
        return ()
    if device.type != "cuda":
        return (
            f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory",
        )
    if accelerator.other_processes and accelerator.others_busy > BUSY:
        return (
            f"{accelerator.other_processes} other processes kept the GPU busy "
            f"{format_percent(accelerator.others_busy)} of the time before the probe: its numbers are lower than alone",
        )
    return ()


def _count_own_batches(workload: LoadedWorkload) -> int | None:
    if workload.batching != "user":
        return None
    loader = build_loader(workload, LoaderConfig(dataloader=DataLoaderSettings(batch_size=None)))
    return count_batches(loader, workload)


def _read_software(accelerator: Accelerator | None) -> Software:
    return Software(
        dltune=read_own_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=accelerator and accelerator.driver,
        python=platform.python_version(),
        start_method=read_start_method_in_force(),
    )


def _read_resident_bytes() -> int:
    """Resident memory now; where the system does not tell, its peak."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
