"""The device of a trial: its memory, and timers of work on it.

CUDA is supported in full; other accelerators through `torch.accelerator`, without pinning. A device works on after a
call has returned, so CUDA events on its stream record when each step ends. Waiting at every step would remove the
overlap to be measured, but the host must not run far ahead: it decides when a trial ends.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from autotune.errors import UsageError
from autotune.system.machine import Accelerator

CALIBRATION_CYCLES: Final = 20_000_000  # 10 to 20 ms; an idle GPU raises its clock during the calls that warm it up
MAX_STEPS_AHEAD: Final = 8  # of the device; each holds a batch in pinned memory
DEVICE_WARM_UP_STEPS: Final = 4  # libraries load, kernels are chosen, compiled code records its graphs
WARM_UP_CALLS: Final = 2
WINDOW_SECONDS: Final = 0.2  # of calls with one synchronization
MAX_WINDOW_CALLS: Final = 200


def resolve_device(name: str, rank: int = 0) -> torch.device:
    """Make the named device current; `auto` is an accelerator if there is one. Ranks share devices without a number."""
    try:
        device = None if name == "auto" else torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: not a torch device. Use auto, cpu or one such as cuda:0.") from None
    if device is not None and device.type == "cpu":  # looking for a device would keep forked workers from using one
        return device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or accelerator or torch.device("cpu")
    if device.type == "cpu":
        return device
    if accelerator is None or device.type != accelerator.type:
        raise UsageError(f"--device {name}: torch finds no such accelerator here. Use --device cpu or auto.")
    count = torch.accelerator.device_count()
    index = rank % count if device.index is None else device.index
    if index >= count:
        raise UsageError(f"--device {name}: this machine has {count} of them.")
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class HostStepTimer:
    """Times the steps of a device by the clock of the host, which waits at the end of each step."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._now = device, now
        self._started = self._asked = now()  # the first batch is requested with the start of its epoch
        self._moments: list[float] = []
        self.waits: list[float] = []  # for each batch, in seconds

    def ask(self) -> None:
        """Record the request of the next batch."""
        self._asked = self._now()

    def begin(self) -> None:
        """Record the arrival of the batch and the start of the step."""
        self.waits.append(self._now() - self._asked)

    def end(self) -> None:
        """Wait for the device, and record the end of the step."""
        synchronize(self._device)
        self._moments.append(self._now() - self._started)

    def read(self) -> tuple[list[float], float]:
        """Return when each step ended since the start, and the time spent waiting, in seconds."""
        return self._moments, sum(self.waits)


class CudaStepTimer:
    """Times the steps of an asynchronous device by `torch.cuda.Event`s with timing.

    The device waits for data from the end of a step to the start of the next one: an idle stream passes an event at
    once, a busy one when it gets there. `record` records a new event on the stream, and returns it.
    """

    def __init__(self, record: Callable[[], Any]) -> None:
        self._record = record
        self._pending: deque[tuple[Any, Any]] = deque()
        self._moments: list[float] = []
        self.waits: list[float] = []  # for each batch, in seconds
        self._last = self._start = self._begun = self._record()

    def ask(self) -> None:
        """Do nothing: the host may wait while the device does not."""

    def begin(self) -> None:
        """Record the start of a step."""
        self._begun = self._record()

    def end(self) -> None:
        """Record the end of the step; wait for the device if it is many steps behind."""
        self._pending.append((self._begun, self._record()))
        if len(self._pending) > MAX_STEPS_AHEAD:
            self._pending[0][1].synchronize()
            self.read()

    def read(self) -> tuple[list[float], float]:
        """Return when each finished step ended since the start, and how long the device idled, in seconds."""
        while self._pending and self._pending[0][1].query():
            begun, ended = self._pending.popleft()
            before = self._moments[-1] if self._moments else 0.0
            self._moments.append(max(before, self._start.elapsed_time(ended) / 1000))
            self.waits.append(max(0.0, self._last.elapsed_time(begun) / 1000))
            self._last = ended
        return self._moments, sum(self.waits)


StepTimer = HostStepTimer | CudaStepTimer


def make_step_timer(device: torch.device) -> StepTimer:
    """Start a timer of the steps on this device."""
    if device.type != "cuda":
        return HostStepTimer(device)
    return CudaStepTimer(  # the step may make another device current, which `synchronize` does not wait for
        lambda: torch.cuda.current_stream(device).record_event(torch.cuda.Event(enable_timing=True, blocking=True))
    )


def read_accelerator(device: torch.device) -> Accelerator | None:
    """Describe the accelerator and count those of the same kind; None on the CPU."""
    if device.type == "cpu":
        return None
    count = torch.accelerator.device_count()
    if device.type != "cuda":
        return Accelerator(name=device.type, count=count)
    facts = torch.cuda.get_device_properties(device)
    same = sum(torch.cuda.get_device_name(index) == facts.name for index in range(count))
    return Accelerator(name=facts.name, count=same, memory_bytes=facts.total_memory)


def limit_memory(device: torch.device, limit_bytes: int | None) -> None:
    """Limit what CUDA's allocator may hold; None leaves the limit unchanged."""
    if device.type == "cuda" and limit_bytes is not None:
        share = min(1.0, limit_bytes / torch.cuda.get_device_properties(device).total_memory)
        torch.cuda.set_per_process_memory_fraction(share, device)


def reset_peak(device: torch.device) -> None:
    """Empty the caches of device memory and of pinned host memory, and reset the peak of the device's."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        empty_host_cache = getattr(torch.accelerator, "empty_host_cache", None)  # since torch 2.12
        (empty_host_cache or torch._C._host_emptyCache)()  # unused blocks are kept for ever
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> int:
    """Return the peak memory of the allocator since `reset_peak`, in bytes."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread, as every worker does; the spinning of others would count as CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class CallSeconds(NamedTuple):
    """Seconds of a call, or the clocks of which they are differences."""

    wall: float
    cpu: float  # of this process, and of the programs it waited for
    threads: float  # of `cpu`: other threads of this process

    def since(self, started: CallSeconds, calls: int = 1) -> CallSeconds:
        """Return the mean seconds of calls between two readings of the clocks."""
        return CallSeconds(*((end - start) / calls for start, end in zip(started, self, strict=True)))


def read_clocks() -> CallSeconds:
    """Read the clocks."""
    process, programs = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = process + programs.ru_utime + programs.ru_stime
    return CallSeconds(time.perf_counter(), cpu, process - time.thread_time())


def time_calls(call: Callable[[], object], device: torch.device) -> CallSeconds:
    """Return the mean seconds of a call, with one synchronization after many calls."""

    def time_window(calls: int) -> CallSeconds:
        synchronize(device)
        started = read_clocks()
        for _ in range(calls):
            call()
        synchronize(device)
        return read_clocks().since(started, calls)

    for _ in range(WARM_UP_CALLS):
        call()
    return time_window(max(1, min(MAX_WINDOW_CALLS, int(WINDOW_SECONDS / time_window(1).wall))))


class SimulatedStep:
    """Keeps a device busy for a given time: the CPU sleeps, CUDA spins for a number of calibrated clock cycles."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds, self._cycles = seconds, 0
        if device.type == "cuda":
            spin_seconds = time_calls(lambda: torch.cuda._sleep(CALIBRATION_CYCLES), device).wall
            self._cycles = int(seconds * CALIBRATION_CYCLES / spin_seconds)

    def __call__(self, _: object = None) -> None:
        """Occupy the device once; as a step, for a batch that is on the device."""
        torch.cuda._sleep(self._cycles) if self._cycles else time.sleep(self._seconds)
