"""Profiles a workload in role main: the costs of loading, the step and copies to the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import torch

from autotune.child.device import (
    CallSeconds,
    read_accelerator,
    read_clocks,
    read_peak,
    reset_peak,
    single_thread,
    synchronize,
    time_calls,
)
from autotune.child.loader import build_plain_loader, count_epoch_batches
from autotune.child.sample_counts import SampleCountError, check_batches, count_samples
from autotune.child.sample_reader import SampleReader, find_costly_lines
from autotune.child.step import Step
from autotune.child.workload import LoadedWorkload
from autotune.errors import WorkloadError
from autotune.profiles.device_prefetch import find_tensors, move_batch
from autotune.protocol.messages import IdentityReport, ProbeCommand, ProbeReport
from autotune.protocol.workload_profile import H2DBandwidth, LinearBytes, LinearCost, WorkloadProfile
from autotune.system.procfs import memory_upper_bound
from autotune.system.software import read_software

LOAD_SECONDS: Final = 0.5  # of loading batches of one size
MAX_LARGEST_SECONDS: Final = 0.2  # for one batch of the largest size and its step
MAX_CHECKED_SECONDS: Final = 1.0  # of loading CHECKED_BATCH samples; those of slower datasets are not checked
CHECKED_BATCH: Final = 2  # samples
SMALL_BATCH_DIVISOR: Final = 4  # of the usual batch size

OnPhase = Callable[..., None]  # a phase, and the number of batches: such reports are rare, others are not


class SizeProfile(NamedTuple):
    """Costs of batches of one size."""

    samples: float  # in a batch, mean
    load: CallSeconds  # mean
    step: CallSeconds  # mean
    sample_bytes: int
    tensors: int
    on_accelerator: bool
    h2d: H2DBandwidth | None
    peak_gpu_bytes: int


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> ProbeReport:
    """Measure the costs that the cost model and the limits need, except those of workers."""
    is_cuda = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) if is_cuda else 0
    sizes = profile_sizes(workload, step, device, command, on_phase)
    usual, largest = sizes[0], max(sizes, key=lambda one: one.samples)
    load = CallSeconds(*map(sum, zip(*(one.load for one in sizes), strict=True)))
    load_cost = LinearCost.fit([(one.samples, one.load.wall) for one in sizes])
    is_slow = load_cost.per_batch(CHECKED_BATCH) > MAX_CHECKED_SECONDS
    on_phase("profiling the code that loads")
    costly_lines = () if is_slow else find_costly_lines(workload)
    rss_bytes = memory_upper_bound(["self"])
    on_phase("reading samples")
    reader = SampleReader(workload)
    if workload.kind == "iterable" or not is_slow:
        reader.read()
    own, parts = workload.own, workload.parts
    has_own_batches = workload.batching == "user"
    shards = (getattr(parts.dataset, name, None) for name in ("num_shards", "n_shards"))  # of Hugging Face datasets
    untested = f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory"
    warning = None if device.type in ("cpu", "cuda") else untested
    notes = (workload.note, warning, reader.describe_storage())
    profile = WorkloadProfile(
        description=type(parts.dataset).__qualname__,
        kind=workload.kind,
        samples=workload.expected_samples,
        counted_samples=reader.epoch_samples,
        epoch_batches=count_epoch_batches(build_plain_loader(workload, None)) if has_own_batches else None,
        batching=workload.batching,
        drop_last=parts.drop_last,
        probe_batch_size=max(1, round(usual.samples)),
        largest_probed=round(largest.samples),
        load_cost=load_cost,
        cpu_share=load.cpu / max(1e-9, load.wall),
        worker_threads_cpu=max(0.0, load.threads) / max(1e-9, load.cpu - load.threads, 0.01 * load.wall),
        step_cost=LinearCost.fit([(one.samples, one.step.wall) for one in sizes]),
        step_cpus=usual.step.cpu / max(1e-9, usual.step.wall),
        h2d=largest.h2d,
        gpu_bytes=LinearBytes.fit([(one.samples, one.peak_gpu_bytes) for one in sizes]),
        sample_bytes=usual.sample_bytes,
        batch_tensors=usual.tensors,
        on_accelerator=usual.on_accelerator,
        has_getitems=hasattr(parts.dataset, "__getitems__"),
        costly_lines=costly_lines,
        shards=next((n for n in shards if type(n) is int and n > 0 and workload.kind == "iterable"), None),
        baseline=workload.baseline,
        loader_class=None if own is None else own.name,
        fixed_settings=dict(workload.fixed),
        loader_decides=() if own is None else tuple(own.fixed),
        ends_with_sampler=own is None or own.ends_with_sampler,
        multiprocessing_context=workload.parts.multiprocessing_context,
        software=read_software(torch.version),
        pinning=is_cuda,
        rss_bytes=rss_bytes,
        notes=tuple(filter(None, notes)),
        accelerator=read_accelerator(device),
        gpu_free_bytes=free_bytes,
    )
    return ProbeReport(profile=profile, digests=reader.digests)


def profile_sizes(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> list[SizeProfile]:
    """Profile the usual batch size, a smaller one, and the largest unless that takes long."""
    profile_size = partial(_profile_size, workload, step, device, on_phase)
    size = choose_size(workload, command.batch_size)
    if size is not None and workload.kind == "map" and hasattr(workload.parts.dataset, "__getitems__"):
        _check_getitems(workload.parts.dataset, workload.parts.sampler, size)
    usual = profile_size(size)
    if size is None or "batch_size" in workload.fixed:
        return [usual]
    sizes = [usual, profile_size(max(1, size // SMALL_BATCH_DIVISOR))] if size > 1 else [usual]
    largest = min(command.largest, workload.expected_samples or command.largest)
    is_fast = usual.load.wall + usual.step.wall < MAX_LARGEST_SECONDS * usual.samples / largest
    return [*sizes, profile_size(largest)] if is_fast and largest > usual.samples else sizes


def choose_size(workload: LoadedWorkload, batch_size: int) -> int | None:
    """Return the usual batch size; None if the user's code makes the batches."""
    if workload.batching == "user":
        return None
    size: int = workload.fixed.get("batch_size", batch_size)
    return min(size, workload.expected_samples or size)


def _check_getitems(dataset: Any, sampler: Any, size: int) -> None:
    indices = list(islice(range(len(dataset)) if sampler is None else sampler, size))
    if (returned := len(dataset.__getitems__(indices))) != len(indices):
        raise WorkloadError(
            f"The dataset's __getitems__ returned {returned} samples for {len(indices)} indices: it must return "
            "one for each, or throughputs are wrong and training skips data."
        )


def _profile_size(
    workload: LoadedWorkload, step: Step, device: torch.device, on_phase: OnPhase, size: int | None
) -> SizeProfile:
    on_phase(f"loading batches of {size}" if size else "loading batches")
    batch, loads, samples = load_batches(workload, size, on_phase)
    warm = loads[1:] or loads
    on_phase("running the step")
    reset_peak(device)
    step_seconds = _time_step(step, batch, device)
    peak = read_peak(device)
    on_phase("copying to the device")
    tensors = list(find_tensors(batch))
    return SizeProfile(
        samples=statistics.fmean(samples),
        load=CallSeconds(*map(statistics.fmean, zip(*warm, strict=True))),
        step=step_seconds,
        sample_bytes=count_bytes(batch) // max(1, samples[-1]),
        tensors=len(tensors),
        on_accelerator=any(tensor.device.type != "cpu" for tensor in tensors),
        h2d=measure_h2d(batch, device) if device.type == "cuda" else None,
        peak_gpu_bytes=peak,
    )


def count_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(batch))


def load_batches(
    workload: LoadedWorkload, size: int | None, on_phase: OnPhase
) -> tuple[Any, list[CallSeconds], list[int]]:
    """Load batches for a while; return the last one, and the seconds and the number of samples of each."""
    loader = build_plain_loader(workload, size)
    is_map = workload.kind == "map" and loader.delivers_as_sampled  # then the sampler counts
    most = 12 if workload.kind == "map" else 1000  # rare batches of a stream may take long: the next shard or chunk
    times: list[CallSeconds] = []
    samples: list[int] = []
    try:
        with single_thread():
            batches, deadline = iter(loader), time.perf_counter() + LOAD_SECONDS
            started = read_clocks()
            for batch in batches:  # a batch lives until the next one arrives, as in training
                times.append(read_clocks().since(started))
                handed_out = loader.index_source.count_samples(len(times))
                samples.append(handed_out - sum(samples) if is_map else count_samples(batch, size or 1))
                on_phase("loading batches", len(times))
                if len(times) == most or (len(times) > 1 and time.perf_counter() > deadline):
                    return batch, times, samples
                started = read_clocks()
        check_batches(len(times), loader.index_source.batches if is_map else None, earlier=())
    except SampleCountError as error:
        raise WorkloadError(f"The dataset {error}.") from None
    return batch, times, samples


def _time_step(step: Step, batch: Any, device: torch.device) -> CallSeconds:
    """Time the step on a batch that is on the device already, if the step takes one."""
    step(batch)  # as it comes; an error in it is the user's
    if device.type != "cpu":
        with suppress(TypeError, AttributeError):  # it may take a batch only as the loader delivers it
            resident = move_batch(batch, device)
            step(resident)
            synchronize(device)
            batch = resident
    return time_calls(lambda: step(batch), device)


def measure_h2d(batch: Any, device: torch.device) -> H2DBandwidth | None:
    """Measure copies of a batch to a CUDA device; None without tensors in host memory."""
    tensors = [tensor.detach() for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
    size = count_bytes(tensors)
    if not size:
        return None

    def measure(sources: Sequence[torch.Tensor]) -> float:
        return size / max(1e-9, time_calls(lambda: [one.to(device, non_blocking=True) for one in sources], device).wall)

    return H2DBandwidth(pageable=measure(tensors), pinned=measure([tensor.pin_memory() for tensor in tensors]))


def identify_workload(
    workload: LoadedWorkload, device: torch.device, batch_size: int, on_phase: OnPhase
) -> IdentityReport:
    """Load batches of this size as the probe does, and describe the workload."""
    batch, _, samples = load_batches(workload, choose_size(workload, batch_size), on_phase)
    return IdentityReport(
        kind=workload.kind,
        samples=workload.expected_samples,
        sample_bytes=count_bytes(batch) // max(1, samples[-1]),
        loader_class=None if workload.own is None else workload.own.name,
        loader_decides=() if workload.own is None else tuple(workload.own.fixed),
        software=read_software(torch.version),
        accelerator=read_accelerator(device),
    )
