"""Timers of training steps and of calls, and linear fits of what batches of a few sizes cost.

A device works on after a call has returned, so CUDA events on its stream record when each step ends. Waiting at every
step would remove the overlap to be measured, but the host must not run far ahead: it decides when a trial ends.
"""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from autotune.protocol.workload_profile import LinearBytes, LinearCost

MAX_STEPS_AHEAD: Final = 8  # of the device; each holds a batch in pinned memory
WARM_UP_CALLS: Final = 3
WINDOW_SECONDS: Final = 0.1  # of device calls with one synchronization
MIN_WINDOW_CALLS: Final = 5
MAX_WINDOW_CALLS: Final = 200
NEGLIGIBLE_RATIO: Final = 1e-3  # of the largest value; smaller values have no relative error of their own


class HostStepTimer:
    """Times the steps of a device that has finished when the call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._started = self._asked = now()
        self._moments: list[float] = []
        self.waits: list[float] = []  # for each batch, in seconds

    def ask(self) -> None:
        """Record the request of the next batch."""
        self._asked = self._now()

    def begin(self) -> None:
        """Record the arrival of the batch and the start of the step."""
        self.waits.append(self._now() - self._asked)

    def end(self) -> None:
        """Record the end of the step."""
        self._moments.append(self._now() - self._started)

    def read(self) -> tuple[list[float], float]:
        """Return when each step ended since the start, and the time spent waiting, in seconds."""
        return self._moments, sum(self.waits)


class CudaStepTimer:
    """Times the steps of an asynchronous device by `torch.cuda.Event`s with timing.

    The device waits for data from the end of a step to the start of the next one: an idle stream passes an event at
    once, a busy one when it gets there.
    """

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._spare: list[Any] = []
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
            self._pending[-MAX_STEPS_AHEAD - 1][1].synchronize()
            self._resolve_passed()

    def read(self) -> tuple[list[float], float]:
        """Return when each finished step ended since the start, and how long the device idled, in seconds."""
        self._resolve_passed()
        return self._moments, sum(self.waits)

    def _resolve_passed(self) -> None:
        while self._pending and self._pending[0][1].query():
            begun, ended = self._pending.popleft()
            before = self._moments[-1] if self._moments else 0.0
            self._moments.append(max(before, self._start.elapsed_time(ended) / 1000))
            self.waits.append(max(0.0, self._last.elapsed_time(begun) / 1000))
            self._spare += [begun] if self._last is self._start else [begun, self._last]
            self._last = ended

    def _record(self) -> Any:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        return event


StepTimer = HostStepTimer | CudaStepTimer


class CallSeconds(NamedTuple):
    """Wall time of a call, and the CPU time of this process and of the programs it waited for."""

    wall: float
    cpu: float


def time_call(call: Callable[[], object]) -> CallSeconds:
    """Time a call; the wall clock excludes the reading of the other one."""
    before, started = _read_cpu_seconds(), time.perf_counter()
    call()
    wall = time.perf_counter() - started
    return CallSeconds(wall, _read_cpu_seconds() - before)


def _read_cpu_seconds() -> float:
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + programs.ru_utime + programs.ru_stime


def time_device_calls(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the seconds per call of work on a device, above zero."""
    for _ in range(WARM_UP_CALLS):
        call()

    def time_window(calls: int) -> float:
        synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return max(1e-9, (time.perf_counter() - started) / calls)

    return time_window(max(MIN_WINDOW_CALLS, min(MAX_WINDOW_CALLS, int(WINDOW_SECONDS / time_window(1)))))


def fit_cost(points: Sequence[tuple[float, float]]) -> LinearCost:
    """Fit the seconds that batches of some sizes take."""
    fixed, slope = _fit_line(points)
    return LinearCost(fixed_seconds=fixed, per_item_seconds=slope)


def fit_bytes(points: Sequence[tuple[float, int]]) -> LinearBytes:
    """Fit the device memory that batches of some sizes take, for no size below the measured value."""
    fixed, slope = _fit_line([(size, float(found)) for size, found in points])
    lift = max(found - (fixed + slope * size) for size, found in points)
    return LinearBytes(fixed_bytes=math.ceil(fixed + max(0.0, lift)), sample_bytes=math.ceil(slope))


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit `fixed + size * slope` to (size, value), by least squares of relative errors, neither part negative."""
    largest = max(value for _, value in points)
    weights = [1 / max(value, NEGLIGIBLE_RATIO * largest, 1e-9) ** 2 for _, value in points]

    def average(values: Iterator[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)

    mean_size, mean_value = average(size for size, _ in points), average(value for _, value in points)
    variance = average((size - mean_size) ** 2 for size, _ in points)
    if variance == 0.0:  # one size shows no fixed part
        return 0.0, mean_value / max(mean_size, 1e-9)
    slope = max(0.0, average((size - mean_size) * (value - mean_value) for size, value in points) / variance)
    if slope * mean_size <= mean_value:
        return mean_value - slope * mean_size, slope
    return 0.0, average(size * value for size, value in points) / average(size**2 for size, _ in points)
