"""Profiles a workload in role main: the costs of loading, the step and copies to the device."""

from __future__ import annotations

import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import SequentialSampler

from autotune.child.device import (
    SimulatedStep,
    read_accelerator,
    read_free_memory,
    read_peak,
    reset_peak,
    single_thread,
    synchronize,
    warn_of_device,
)
from autotune.child.hot_code import find_costly_lines
from autotune.child.loader import build_plain_loader, count_epoch_batches
from autotune.child.probe_workers import MAX_CHECKED_SECONDS, ROUND_BATCH_SIZE, SMALL_BATCH_DIVISOR, OnPhase
from autotune.child.sample_checks import SampleCountError, check_epoch_length, check_handed_out, count_samples
from autotune.child.sample_reader import SampleReader
from autotune.child.step import Step
from autotune.child.timers import CallSeconds, fit_bytes, fit_cost, time_call, time_device_calls
from autotune.child.workload import LoadedWorkload
from autotune.errors import WorkloadError
from autotune.profiles.device_prefetch import DeviceCopier, find_tensors, move_batch
from autotune.protocol.messages import IdentityReport, ProbeCommand, ProbeReport
from autotune.protocol.workload_profile import H2DBandwidth, WorkloadProfile
from autotune.system.machine import Software
from autotune.system.processes import read_resident
from autotune.system.software import read_own_version, read_start_method_in_force, read_thread_variables

LOAD_SECONDS: Final = 0.5  # of loading batches of one size
STEP_SECONDS: Final = 0.25  # of the step at one size
MAX_LARGEST_SECONDS: Final = 0.2  # for one batch of the largest size and its step
MAX_MAP_BATCHES: Final = 12
MAX_STREAM_BATCHES: Final = 1000  # rare batches of a stream may take long: the next shard or chunk
MAX_STEPS: Final = 100
WARM_UP_STEPS: Final = 2
MIN_BUSY_SECONDS: Final = 1e-3  # of computing; less is not more than the cost of starting it
SHARD_COUNTS: Final = ("num_shards", "n_shards")  # attributes; `n_shards` in earlier versions of Hugging Face datasets
VALIDATION_SPLITS: Final = ("val", "valid", "validation", "test", "dev", "eval")


class SizeProfile(NamedTuple):
    """What batches of one size cost."""

    samples: float  # in a batch, mean
    load: CallSeconds  # mean
    step: CallSeconds  # median; CPU time of all threads
    sample_bytes: int
    tensors: int
    on_accelerator: bool
    h2d: H2DBandwidth | None
    peak_gpu_bytes: int


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> ProbeReport:
    """Measure what the cost model and the limits need, as far as it can be known without workers."""
    gpu_room_bytes = read_free_memory(device)
    usual, sizes = profile_sizes(workload, step, device, command, on_phase)
    load_cost = fit_cost([(one.samples, one.load.wall) for one in sizes])
    is_slow = load_cost.per_batch(ROUND_BATCH_SIZE) > MAX_CHECKED_SECONDS
    on_phase("profiling the code that loads")
    costly_lines = () if is_slow else find_costly_lines(workload)
    rss_bytes = read_resident("self")[0] or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    on_phase("reading samples")
    reader = SampleReader(workload)
    if workload.kind == "iterable" or not is_slow:
        reader.read()
    own, parts = workload.own, workload.parts
    has_own_batches = workload.batching == "user"
    shards = (getattr(parts.dataset, name, None) for name in SHARD_COUNTS if workload.kind == "iterable")
    warnings = (warn_of_device(device), reader.describe_storage(), warn_of_validation_data(workload))
    profile = WorkloadProfile(
        description=type(parts.dataset).__qualname__,
        kind=workload.kind,
        samples=workload.promised_samples,
        counted_samples=reader.epoch_samples,
        epoch_batches=count_epoch_batches(build_plain_loader(workload, None)) if has_own_batches else None,
        batching=workload.batching,
        drop_last=parts.drop_last,
        probe_batch_size=max(1, round(usual.samples)),
        largest_probed=round(sizes[0].samples),
        load_cost=load_cost,
        cpu_share=sum(one.load.cpu for one in sizes) / max(1e-9, sum(one.load.wall for one in sizes)),
        step_cost=fit_cost([(one.samples, one.step.wall) for one in sizes]),
        step_cpus=usual.step.cpu / max(1e-9, usual.step.wall),
        h2d=sizes[0].h2d,
        gpu_bytes=fit_bytes([(one.samples, one.peak_gpu_bytes) for one in sizes]),
        sample_bytes=usual.sample_bytes,
        batch_tensors=usual.tensors,
        on_accelerator=usual.on_accelerator,
        has_getitems=hasattr(parts.dataset, "__getitems__"),
        costly_lines=costly_lines,
        shards=next((count for count in shards if type(count) is int and count > 0), None),
        baseline=workload.baseline,
        loader_class=None if own is None else own.name,
        fixed_settings=dict(workload.fixed),
        loader_decides=() if own is None else tuple(own.fixed),
        ends_with_sampler=own is None or own.ends_with_sampler,
        multiprocessing_context=workload.parts.multiprocessing_context,
        software=read_software(),
        pinning=device.type == "cuda",
        rss_bytes=rss_bytes,
        notes=tuple(filter(None, (workload.note, *warnings))),
        accelerator=read_accelerator(device),
        gpu_room_bytes=gpu_room_bytes,
    )
    return ProbeReport(profile=profile, digests=reader.digests)


def profile_sizes(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> tuple[SizeProfile, list[SizeProfile]]:
    """Profile the usual batch size, a smaller one, and the largest unless that takes long.

    Return the usual one, and all of them from the largest to the smallest.
    """
    size = choose_size(workload, command.batch_size)
    check_getitems(workload, size)
    usual = _profile_size(workload, step, device, size, on_phase)
    if size is None or "batch_size" in workload.fixed:
        return usual, [usual]
    sizes, small = [usual], max(1, size // SMALL_BATCH_DIVISOR)
    largest = min(command.largest, workload.promised_samples or command.largest)
    if small < size:
        sizes.append(_profile_size(workload, step, device, small, on_phase))
    is_fast = usual.load.wall + usual.step.wall < MAX_LARGEST_SECONDS * usual.samples / largest
    if is_fast and largest > usual.samples:
        sizes.insert(0, _profile_size(workload, step, device, largest, on_phase))
    return usual, sizes


def choose_size(workload: LoadedWorkload, batch_size: int) -> int | None:
    """Return the usual batch size; None if the user's code makes the batches."""
    if workload.batching == "user":
        return None
    size: int = workload.fixed.get("batch_size", batch_size)
    return min(size, workload.promised_samples or size)


def check_getitems(workload: LoadedWorkload, size: int | None) -> None:
    """Raise WorkloadError if `__getitems__` returns another number of samples than requested."""
    dataset: Any = workload.parts.dataset
    if workload.kind != "map" or size is None or not hasattr(dataset, "__getitems__"):
        return
    order: Any = workload.parts.sampler if workload.parts.sampler is not None else range(len(dataset))
    indices = list(islice(order, size))
    if (returned := len(dataset.__getitems__(indices))) != len(indices):
        raise WorkloadError(
            f"The dataset's __getitems__ returned {returned} samples for {len(indices)} indices: it must return "
            "one for each, or throughputs are wrong and training skips data."
        )


def _profile_size(
    workload: LoadedWorkload, step: Step, device: torch.device, size: int | None, on_phase: OnPhase
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
        load=CallSeconds(statistics.fmean(one.wall for one in warm), statistics.fmean(one.cpu for one in warm)),
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
    times: list[CallSeconds] = []
    samples: list[int] = []
    batches: list[Any] = []  # the last one
    iterator, deadline = iter(loader), time.perf_counter() + LOAD_SECONDS
    most = MAX_MAP_BATCHES if workload.kind == "map" else MAX_STREAM_BATCHES

    def load() -> None:
        batches[:] = [next(iterator)]

    with single_thread():
        while len(times) < most and (len(times) < 2 or time.perf_counter() < deadline):
            try:
                times.append(time_call(load))
            except StopIteration:
                _check_epoch(len(times), loader.index_source.batches if is_map else None)
                break
            handed_out = loader.index_source.count_samples(len(times))
            samples.append(handed_out - sum(samples) if is_map else count_samples(batches[0], size or 1))
            on_phase(f"loaded {len(times)} batches")
    return batches[0], times, samples


def _check_epoch(batches: int, handed_out: int | None) -> None:
    try:
        check_handed_out(batches, handed_out)
        check_epoch_length(batches, [], epoch=1)
    except SampleCountError as error:
        raise WorkloadError(f"The dataset {error}.") from None


def _time_step(step: Step, batch: Any, device: torch.device) -> CallSeconds:
    """Time the step on a batch that is ready, after calls that warm it up."""
    if device.type == "cpu":
        for _ in range(WARM_UP_STEPS):
            step(batch)
        times: list[CallSeconds] = []
        deadline = time.perf_counter() + STEP_SECONDS
        while not times or (len(times) < MAX_STEPS and time.perf_counter() < deadline):
            times.append(time_call(lambda: step(batch)))
        return CallSeconds(*map(statistics.median, zip(*times, strict=True)))
    step(batch)  # as it comes; an error in it is the user's
    try:
        resident = move_batch(batch, device)
        step(resident)
        synchronize(device)
    except (TypeError, AttributeError):  # it takes a batch only as the loader delivers it
        resident = batch
    seconds: list[float] = []
    whole = time_call(lambda: seconds.append(time_device_calls(lambda: step(resident), lambda: synchronize(device))))
    return CallSeconds(seconds[0], seconds[0] * whole.cpu / max(1e-9, whole.wall))


def measure_h2d(batch: Any, device: torch.device) -> H2DBandwidth | None:
    """Measure copies of a batch to a CUDA device, alone and while it computes; None without tensors in host memory."""
    tensors = [tensor.detach() for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
    size = count_bytes(tensors)
    if not size:
        return None
    pinned = [tensor.pin_memory() for tensor in tensors]

    def measure(work: Callable[[], object]) -> float:
        return time_device_calls(work, lambda: synchronize(device))

    def send(sources: Sequence[torch.Tensor]) -> object:
        return [tensor.to(device, non_blocking=True) for tensor in sources]

    pageable_seconds, pinned_seconds = measure(lambda: send(tensors)), measure(lambda: send(pinned))
    compute, copier = SimulatedStep(device, max(pinned_seconds, MIN_BUSY_SECONDS)), DeviceCopier(device)
    copies = max(1, round(MIN_BUSY_SECONDS / pinned_seconds))

    def copy() -> object:
        return [copier.send(pinned) for _ in range(copies)]

    def both() -> object:
        compute()
        return copy()

    overlap = overlap_fraction(measure(compute), measure(copy), measure(both))
    return H2DBandwidth(pageable=size / pageable_seconds, pinned=size / pinned_seconds, overlap=overlap)


def overlap_fraction(computing: float, copying: float, together: float) -> float:
    """Return the share of the shorter work that is hidden behind the longer one, from the seconds of each and both."""
    return min(1.0, max(0.0, (computing + copying - together) / min(computing, copying)))


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


def identify_workload(
    workload: LoadedWorkload, device: torch.device, batch_size: int, on_phase: OnPhase
) -> IdentityReport:
    """Load batches of this size as the probe does, and describe the workload."""
    batch, _, samples = load_batches(workload, choose_size(workload, batch_size), on_phase)
    return IdentityReport(
        kind=workload.kind,
        samples=workload.promised_samples,
        sample_bytes=count_bytes(batch) // max(1, samples[-1]),
        loader_class=None if workload.own is None else workload.own.name,
        loader_decides=() if workload.own is None else tuple(workload.own.fixed),
        software=read_software(),
        accelerator=read_accelerator(device),
    )


def read_software() -> Software:
    """Return the versions that this process runs with, and how it starts its workers."""
    return Software(
        dltune=read_own_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        python=platform.python_version(),
        start_method=read_start_method_in_force(),
        thread_variables=read_thread_variables(),
    )
