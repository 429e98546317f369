"""Profiles a workload in role main: the costs of loading, the step and copies to the device."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import default_collate

from autotune.child.device import (
    DEVICE_WARM_UP_STEPS,
    CallSeconds,
    read_accelerator,
    read_clocks,
    read_peak,
    reset_peak,
    single_thread,
    synchronize,
    time_calls,
)
from autotune.child.loader import build_plain_loader, read_length
from autotune.child.sample_counts import SampleCountError, check_batches, count_samples
from autotune.child.sample_reader import SampleReader, find_costly_lines, find_epoch_state
from autotune.child.step import Step
from autotune.child.workload import LoadedWorkload, read_attribute
from autotune.errors import WorkloadError
from autotune.profiles.device_prefetch import find_tensors, move_batch
from autotune.protocol.messages import ProbeCommand, ProbeReport
from autotune.protocol.statistics import student_t
from autotune.protocol.workload_profile import H2DBandwidth, LinearCost, WorkloadProfile
from autotune.request import Workload
from autotune.settings import SETTINGS
from autotune.system.procfs import memory_upper_bound
from autotune.system.software import list_libraries, read_software

LOAD_SECONDS: Final = 0.5  # of loading batches of one size
MAX_LOADED: Final = 50  # batches of one size; each has another size if its samples are padded
MAX_STREAMED: Final = 1000  # batches of a stream; few of them take long: the next shard or chunk
STEP_SECONDS: Final = 0.3  # of loading further batches and running the step on them
SIZE_TAIL: Final = 5e-4  # on either side of the interval of a sample's bytes: outside it, the dataset has changed
MAX_EPOCHS: Final = 10  # of batches for the step, if epochs are short
MAX_LARGEST_SECONDS: Final = 0.2  # for one batch of the largest size and its step
MAX_CHECKED_SECONDS: Final = 1.0  # of loading CHECKED_BATCH samples; those of slower datasets are not checked
CHECKED_BATCH: Final = 2  # samples
SMALL_BATCH_DIVISOR: Final = 4  # of the usual batch size

OnPhase = Callable[..., None]  # a phase, and the number of batches: such reports are rare, others are not


class LoadCosts(NamedTuple):
    """Costs and sizes of batches that were loaded one after another."""

    seconds: list[CallSeconds]
    samples: list[int]
    bytes: list[int]  # of their tensors

    @property
    def sample_bytes(self) -> tuple[int, int]:
        """The mean bytes of a sample, and the half-width of its 99.9% interval: each batch may be padded."""
        means, half_width = [size / max(1, count) for size, count in zip(self.bytes, self.samples, strict=True)], 0.0
        if len(means) > 1:
            half_width = student_t(len(means) - 1, SIZE_TAIL) * statistics.stdev(means) / math.sqrt(len(means))
        return round(sum(self.bytes) / max(1, sum(self.samples))), math.ceil(half_width)


class StepProfile(NamedTuple):
    """Costs of the step on batches of one size."""

    seconds: CallSeconds  # mean
    peak_gpu_bytes: int
    takes_moved: bool  # whether it takes a batch all of which is on the device


class SizeProfile(NamedTuple):
    """Costs of batches of one size."""

    samples: float  # in a batch, mean
    load: CallSeconds  # mean
    step: StepProfile | None
    sample_bytes: tuple[int, int]
    tensors: int
    on_accelerator: bool
    h2d: H2DBandwidth | None


def profile_workload(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> ProbeReport:
    """Measure the costs that the cost model and the limits need, except those of workers."""
    is_cuda = device.type == "cuda"
    free_bytes = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) if is_cuda else 0
    sizes = profile_sizes(workload, step, device, command, on_phase)
    stepped = [(one, one.step) for one in sizes if one.step is not None]
    (usual, usual_step), (largest, _) = stepped[0], max(stepped, key=lambda pair: pair[0].samples)
    load = CallSeconds(*map(sum, zip(*(one.load for one in sizes), strict=True)))
    load_cost = LinearCost.fit([(one.samples, one.load.wall) for one in sizes])
    is_slow = load_cost.at(CHECKED_BATCH) > MAX_CHECKED_SECONDS
    on_phase("profiling the code that loads")
    costly_lines = () if is_slow else find_costly_lines(workload)
    rss_bytes = memory_upper_bound(["self"])
    on_phase("reading samples")
    reader = SampleReader(workload)
    if workload.kind == "iterable" or not is_slow:
        reader.read()
    own, parts = workload.own, workload.parts
    has_own_batches = workload.batching == "user"
    shards = (read_attribute(parts.dataset, name) for name in ("num_shards", "n_shards"))  # of Hugging Face datasets
    untested = f"{device.type} is used through torch.accelerator and is untested: no pinning, no budget of its memory"
    warning = None if device.type in ("cpu", "cuda") else untested
    notes = warning, reader.describe_cache()
    profile = WorkloadProfile(
        description=type(parts.dataset).__qualname__,
        kind=workload.kind,
        samples=workload.expected_samples,
        counted_samples=reader.epoch_samples,
        epoch_batches=read_length(build_plain_loader(workload, None)) if has_own_batches else None,
        batching=workload.batching,
        drop_last=parts.drop_last,
        probe_batch_size=max(1, round(usual.samples)),
        largest_probed=round(largest.samples),
        load_cost=load_cost,
        cpu_share=load.cpu / max(1e-9, load.wall),
        worker_threads_cpu=max(0.0, load.threads) / max(1e-9, load.cpu - load.threads, 0.01 * load.wall),
        step_cost=LinearCost.fit([(one.samples, step.seconds.wall) for one, step in stepped]),
        step_cpus=usual_step.seconds.cpu / max(1e-9, usual_step.seconds.wall),
        step_takes_moved=all(step.takes_moved for _, step in stepped),
        h2d=largest.h2d,
        gpu_bytes=LinearCost.fit([(one.samples, step.peak_gpu_bytes) for one, step in stepped], is_upper_bound=True),
        sample_bytes=usual.sample_bytes[0],
        sample_bytes_error=usual.sample_bytes[1],
        batch_tensors=usual.tensors,
        on_accelerator=usual.on_accelerator,
        has_getitems=read_attribute(parts.dataset, "__getitems__") is not None,
        epoch_state=find_epoch_state(workload, on_phase),
        costly_lines=costly_lines,
        shards=next((n for n in shards if type(n) is int and n > 0 and workload.kind == "iterable"), None),
        baseline=workload.baseline,
        is_from_data_module=workload.owner is not None,
        gives_loader=workload.gives_loader,
        prepared_by=workload.prepared_by,
        loader_class=None if own is None else own.name,
        fixed_settings=dict(workload.fixed),
        loader_decides=() if own is None else tuple(own.fixed),
        ends_with_sampler=own is None or own.ends_with_sampler,
        multiprocessing_context=workload.parts.multiprocessing_context,
        software=read_software(),
        pinning=is_cuda,
        rss_bytes=rss_bytes,
        notes=tuple(filter(None, notes)),
        loader_note=workload.note,
        accelerator=read_accelerator(device),
        gpu_free_bytes=free_bytes,
    )
    return ProbeReport(profile=profile, digests=reader.digests, libraries=tuple(list_libraries()))


def profile_sizes(
    workload: LoadedWorkload, step: Step, device: torch.device, command: ProbeCommand, on_phase: OnPhase
) -> list[SizeProfile]:
    """Profile the usual batch size, a smaller one, and the largest unless that takes long or too much memory.

    The step runs only on batch sizes that the search may try, or near them: others may be impossible for it.
    """
    profile_size = partial(_profile_size, workload, device, on_phase)
    usual_size, *others = list_sizes(workload, command.batch_sizes)
    if usual_size is not None and workload.kind == "map":
        _check_getitems(workload.parts, usual_size)
    usual, used_bytes = profile_size(usual_size, step), memory_upper_bound(["self"])
    if usual_size is None or "batch_size" in workload.fixed:
        return [usual]
    found = [usual]
    if usual_size > 1:
        small = max(usual_size // SMALL_BATCH_DIVISOR, min(2, usual_size - 1))  # one sample has no variance
        found.append(profile_size(small, step if others else None))
    largest = max(filter(None, (usual_size, *others)))
    seconds = usual.load.wall + (0.0 if usual.step is None else usual.step.seconds.wall)
    is_short = seconds < MAX_LARGEST_SECONDS * usual.samples / largest
    if largest > usual.samples and is_short and used_bytes + 2 * largest * usual.sample_bytes[0] < command.memory_bytes:
        try:
            found.append(profile_size(largest, step))
        except RuntimeError as error:  # too large a size was only a guess; its trials will show which one fits
            if not re.search(r"out of memory|allocate memory|ALLOC_FAILED|NVML_SUCCESS", str(error)):
                raise
        reset_peak(device)
    return found


def list_sizes(workload: LoadedWorkload, requested: Sequence[int]) -> Sequence[int | None]:
    """Return the batch sizes of the search, the nearest to the default first; None if the user's code makes batches."""
    if workload.batching == "user":
        return [None]
    setting, baseline = SETTINGS["batch_size"], workload.baseline
    own = None if baseline is None else baseline.dataloader.batch_size
    sizes = requested or ((own,) if own else setting.choices)
    if "batch_size" in workload.fixed:
        sizes = (workload.fixed["batch_size"],)
    most = workload.expected_samples or max(sizes)
    return sorted({min(size, most) for size in sizes}, key=lambda size: abs(size - setting.recommended))


def _check_getitems(parts: Workload, size: int) -> None:
    dataset: Any = parts.dataset
    if not getattr(dataset, "__getitems__", None):
        return
    indices = list(islice(range(len(dataset)) if parts.sampler is None else parts.sampler, size))
    returned = dataset.__getitems__(indices)
    is_batch = parts.collate_fn not in (None, default_collate) and count_samples(returned, len(indices)) == len(indices)
    if not is_batch and len(returned) != len(indices):  # a collate function may take what is a batch already
        raise WorkloadError(
            f"The dataset's __getitems__ returned {len(returned)} samples for {len(indices)} indices: it must return "
            "one for each, or throughputs are wrong and training skips data."
        )


def _profile_size(
    workload: LoadedWorkload, device: torch.device, on_phase: OnPhase, size: int | None, step: Step | None
) -> SizeProfile:
    """Profile batches of one size; a batch is measured before the step, which may change it."""
    found, batches = load_batches(workload, size, on_phase)
    on_phase("copying to the device")
    batch = next(batches)
    h2d = measure_h2d(batch, device) if device.type == "cuda" else None
    devices = [tensor.device.type for tensor in find_tensors(batch)]
    batches = chain([batch], batches)
    del batch  # so that it ends with its step
    warm = int(len(found.seconds) > 1)  # the first batch may take longer
    return SizeProfile(
        samples=max(1.0, statistics.fmean(found.samples[warm:])),  # an empty tensor counts as none
        load=CallSeconds(*map(statistics.fmean, zip(*found.seconds[warm:], strict=True))),
        step=None if step is None else profile_step(step, batches, device, on_phase),
        sample_bytes=found.sample_bytes,
        tensors=len(devices),
        on_accelerator=any(name != "cpu" for name in devices),
        h2d=h2d,
    )


def count_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in find_tensors(batch))


def load_batches(workload: LoadedWorkload, size: int | None, on_phase: OnPhase) -> tuple[LoadCosts, Iterator[Any]]:
    """Load batches for a while; return their costs, and an iterator over the last one and those after it."""
    loader = build_plain_loader(workload, size)
    is_map = workload.kind == "map" and loader.delivers_as_sampled  # then the sampler counts
    most = MAX_LOADED if workload.kind == "map" else MAX_STREAMED
    times, samples, sizes = costs = LoadCosts([], [], [])
    batches = iter(loader)
    try:
        with single_thread():
            deadline, started = time.perf_counter() + LOAD_SECONDS, read_clocks()
            for batch in batches:  # a batch lives until the next one arrives, as in training
                times.append(read_clocks().since(started))
                handed_out = loader.index_source.count_samples(len(times))
                samples.append(handed_out - sum(samples) if is_map else count_samples(batch, size))
                sizes.append(count_bytes(batch))
                on_phase(f"loading batches of {size}" if size else "loading batches", len(times))
                if len(times) == most or (len(times) > 1 and time.perf_counter() > deadline):
                    break
                started = read_clocks()
            else:
                check_batches(len(times), loader.index_source.batches if is_map else None, earlier=())
    except SampleCountError as error:
        raise WorkloadError(f"The dataset {error}.") from None
    return costs, chain([batch], batches, chain.from_iterable(repeat(loader, MAX_EPOCHS)))


def profile_step(step: Step, batches: Iterator[Any], device: torch.device, on_phase: OnPhase) -> StepProfile:
    """Profile the step, which gets each batch once, as in training: on the device already, if it takes such batches."""
    on_phase("running the step")
    reset_peak(device)

    def run(batch: Any) -> CallSeconds:
        synchronize(device)  # the copy of the batch may still run
        started = read_clocks()
        step(batch)
        returned = read_clocks()  # the CPU time of waiting for the device does not count
        synchronize(device)
        on_phase("running the step")  # it may have been compiled, which takes long
        return returned.since(started)._replace(wall=time.perf_counter() - started.wall)

    times, takes_moved = [run(next(batches))], device.type != "cpu"  # as it comes; an error in it is the user's
    if takes_moved:
        try:
            times.append(run(move_batch(next(batches), device)))
        except Exception:  # it needs parts of its batch on the CPU, or the memory of the copy
            takes_moved = False
    deadline = time.perf_counter() + STEP_SECONDS
    warm_up = 0 if device.type == "cpu" else DEVICE_WARM_UP_STEPS
    for batch in batches:
        times.append(run(move_batch(batch, device) if takes_moved else batch))
        if time.perf_counter() > deadline and len(times) >= warm_up + 2:
            break
    warm = times[min(max(warm_up, len(times) // 2), len(times) - 1) :]  # the first ones are slower
    seconds = CallSeconds(*map(statistics.fmean, zip(*warm, strict=True)))
    return StepProfile(seconds, read_peak(device), takes_moved)


def measure_h2d(batch: Any, device: torch.device) -> H2DBandwidth | None:
    """Measure copies of a batch to a CUDA device; None without tensors in host memory."""
    tensors = [tensor.detach() for tensor in find_tensors(batch) if tensor.device.type == "cpu"]
    size = count_bytes(tensors)
    if not size:
        return None

    def measure(sources: Sequence[torch.Tensor]) -> float:
        return size / max(1e-9, time_calls(lambda: [one.to(device, non_blocking=True) for one in sources], device).wall)

    return H2DBandwidth(pageable=measure(tensors), pinned=measure([tensor.pin_memory() for tensor in tensors]))
