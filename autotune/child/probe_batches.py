"""What batches of a few sizes cost in this process: loading them, the step on them, the way to the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autotune.child.batches import count_bytes, count_samples
from autotune.child.device import read_peak, reset_peak, synchronize
from autotune.child.loader import build_plain_loader
from autotune.child.probe_h2d import H2DBench, measure_h2d
from autotune.child.probe_workers import single_thread
from autotune.child.reading_traces import ProcessState, find_traces
from autotune.child.step import Step
from autotune.child.timing import CallSeconds, read_clocks, seconds_since, time_calls, time_device_calls
from autotune.child.workload import LoadedWorkload
from autotune.errors import WorkloadError
from autotune.profiles.device_prefetch import find_tensors, move_batch
from autotune.protocol.messages import ProbeCommand, Traces
from autotune.protocol.workload_profile import H2DBandwidth

if TYPE_CHECKING:
    import torch

LOAD_SECONDS: Final = 0.5  # spent on timing batches of one size
STEP_SECONDS: Final = 0.25  # spent on timing the step at one size
MAX_LARGEST_SECONDS: Final = 0.2  # for one batch of the largest size and its step; a slower one is not waited for
MAX_LOADED_BATCHES: Final = 12  # of a map-style dataset
MAX_STREAMED_BATCHES: Final = 1000  # of a stream, which may take long for one batch in many: its next shard or chunk
MAX_STEPS: Final = 100
WARM_UP_STEPS: Final = 2
SMALL_BATCH_DIVISOR: Final = 4  # the second batch size is this many times smaller

OnPhase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BatchSizeProfile:
    """What batches of one size cost.

    Attributes:
        samples: In a batch, mean.
        load: To load and collate one, mean.
        step: The step on it, median; CPU time is that of all threads.
        sample_bytes: Bytes of tensors per sample.
        on_accelerator: Whether it is there already.
        h2d: How fast it gets there; None on the CPU.
        peak_gpu_bytes: What the allocator held for a step on it; 0 on the CPU.
        traces: What loading it left in this process.
    """

    samples: float
    load: CallSeconds
    step: CallSeconds
    sample_bytes: int
    tensors: int
    on_accelerator: bool
    h2d: H2DBandwidth | None
    peak_gpu_bytes: int
    traces: Traces


def profile_batch_sizes(
    workload: LoadedWorkload, step: Step, device: torch.device, order: ProbeCommand, on_phase: OnPhase
) -> tuple[BatchSizeProfile, list[BatchSizeProfile]]:
    """Profile the usual batch size, a smaller one, and the largest unless that takes long; the usual, and all of them.

    They are ordered from the largest to the smallest.
    """
    sizes = _choose_sizes(workload, order.batch_size)
    profiles = [_profile_size(workload, step, device, size, on_phase) for size in sizes]
    usual = profiles[0]
    largest = _clip_to_samples(order.largest, workload)
    is_soon_done = usual.load.wall + usual.step.wall < MAX_LARGEST_SECONDS * usual.samples / largest
    is_searched = workload.batching == "batch_size" and "batch_size" not in workload.fixed
    if is_searched and is_soon_done and largest > usual.samples:
        profiles.insert(0, _profile_size(workload, step, device, largest, on_phase))
    return usual, profiles


def _choose_sizes(workload: LoadedWorkload, batch_size: int) -> list[int | None]:
    large = usual_batch_size(workload, batch_size)
    if large is None or "batch_size" in workload.fixed:
        return [large]
    small = max(1, large // SMALL_BATCH_DIVISOR)
    return [large] if small == large else [large, small]


def usual_batch_size(workload: LoadedWorkload, batch_size: int) -> int | None:
    """Give the batch size that is looked at first; None where the batches are the user's own."""
    if workload.batching == "user":
        return None
    return _clip_to_samples(workload.fixed.get("batch_size", batch_size), workload)


def _clip_to_samples(batch_size: int, workload: LoadedWorkload) -> int:
    return min(batch_size, workload.promised_samples or batch_size)


def _profile_size(
    workload: LoadedWorkload, step: Step, device: torch.device, size: int | None, on_phase: OnPhase
) -> BatchSizeProfile:
    on_phase(f"loading batches of {size}" if size else "loading batches")
    before = ProcessState.read()
    batch, loads, samples = load_batches(workload, size, on_phase)
    traces = find_traces(before)
    warm = loads[1:] or loads
    on_phase("running the step")
    reset_peak(device)
    step_seconds = _time_step(step, batch, device)
    peak = read_peak(device)
    on_phase("copying to the device")
    tensors = list(find_tensors(batch))
    return BatchSizeProfile(
        samples=statistics.fmean(samples),
        load=CallSeconds(statistics.fmean(one.wall for one in warm), statistics.fmean(one.cpu for one in warm)),
        step=step_seconds,
        sample_bytes=measure_sample_bytes(batch, samples),
        tensors=len(tensors),
        on_accelerator=any(tensor.device.type != "cpu" for tensor in tensors),
        h2d=measure_h2d(batch, H2DBench(device)) if device.type == "cuda" else None,
        peak_gpu_bytes=peak,
        traces=traces,
    )


def load_batches(
    workload: LoadedWorkload, size: int | None, on_phase: OnPhase
) -> tuple[Any, list[CallSeconds], list[int]]:
    """Load batches in this process for a while: the last one, what each took, and how many samples each had."""
    loader = build_plain_loader(workload, size)
    is_map = workload.kind == "map" and loader.delivers_as_sampled  # then the sampler counts
    most = MAX_LOADED_BATCHES if workload.kind == "map" else MAX_STREAMED_BATCHES
    times: list[CallSeconds] = []
    samples: list[int] = []
    batch: Any = None
    iterator, has_ended = iter(loader), False
    deadline = time.perf_counter() + LOAD_SECONDS
    with single_thread():
        while len(times) < most and (len(times) < 2 or time.perf_counter() < deadline):
            started = read_clocks()
            try:
                batch = next(iterator)
            except StopIteration:
                has_ended = True
                break
            times.append(seconds_since(started))
            handed_out = loader.index_source.count_samples(len(times))
            samples.append(handed_out - sum(samples) if is_map else count_samples(batch, size or 1))
            on_phase(f"loaded {len(times)} batches")
    _check_arrivals(loader.index_source.batches if is_map and has_ended else None, len(times))
    return batch, times, samples


def measure_sample_bytes(batch: Any, samples: Sequence[int]) -> int:
    """Give the mean bytes of a sample in the last batch that was loaded."""
    return count_bytes(batch) // max(1, samples[-1])


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


def _time_step(step: Step, batch: Any, device: torch.device) -> CallSeconds:
    """Time the step on a batch that is always ready, after runs that warm it up."""
    if device.type != "cpu":
        return _time_step_on_device(step, batch, device)
    times = time_calls(lambda: step(batch), STEP_SECONDS, min_calls=WARM_UP_STEPS + 1, max_calls=MAX_STEPS)
    measured = times[WARM_UP_STEPS:]
    return CallSeconds(*(statistics.median(column) for column in zip(*measured, strict=True)))


def _time_step_on_device(step: Step, batch: Any, device: torch.device) -> CallSeconds:
    """Time many steps on a batch that is on the device, with one synchronisation for all of them."""
    step(batch)  # as it comes; an error in it is the user's
    try:
        resident = move_batch(batch, device)
        step(resident)
        synchronize(device)
    except (TypeError, AttributeError):  # it takes a batch only as the loader delivers it
        resident = batch
    started = read_clocks()
    seconds = time_device_calls(lambda: step(resident), lambda: synchronize(device))
    spent = seconds_since(started)
    return CallSeconds(seconds, seconds * spent.cpu / max(1e-9, spent.wall))
