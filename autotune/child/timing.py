"""Times calls: one by one on the host, many at once on a device; fits what batches of a few sizes took."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from autotune.protocol.workload_profile import LinearBytes, LinearCost

WARM_UP_CALLS: Final = 3
WINDOW_SECONDS: Final = 0.1  # of device calls with one synchronisation for all
MIN_WINDOW_CALLS: Final = 5
MAX_WINDOW_CALLS: Final = 200
NEGLIGIBLE_RATIO: Final = 1e-3  # of the largest value; the error of a smaller one is not taken relative to itself


class CallSeconds(NamedTuple):
    """What a call took: time that passed, and CPU time of this process and of programs it waited for."""

    wall: float
    cpu: float


def read_clocks() -> CallSeconds:
    """Read both clocks, for `seconds_since`: the one for time that passes last, since reading the other takes some."""
    cpu = read_cpu_seconds()
    return CallSeconds(time.perf_counter(), cpu)


def seconds_since(started: CallSeconds) -> CallSeconds:
    """Give what has passed on both clocks."""
    return CallSeconds(time.perf_counter() - started.wall, read_cpu_seconds() - started.cpu)


def read_cpu_seconds() -> float:
    """Read the CPU time of this process and of the programs that it started and waited for, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def time_calls(call: Callable[[], object], seconds: float, *, min_calls: int, max_calls: int) -> list[CallSeconds]:
    """Time one call after another for about so long; each result is let go of before the next call."""
    times: list[CallSeconds] = []
    deadline = time.perf_counter() + seconds
    while len(times) < min_calls or (len(times) < max_calls and time.perf_counter() < deadline):
        started = read_clocks()
        call()
        times.append(seconds_since(started))
    return times


def time_device_calls(
    call: Callable[[], object], settle: Callable[[], None], now: Callable[[], float] = time.perf_counter
) -> float:
    """Give the seconds per call, above zero, of what a device does; `settle` waits until it has done it."""
    for _ in range(WARM_UP_CALLS):
        call()
    settle()
    started = now()
    call()
    settle()
    once = max(1e-7, now() - started)
    calls = max(MIN_WINDOW_CALLS, min(MAX_WINDOW_CALLS, int(WINDOW_SECONDS / once)))
    started = now()
    for _ in range(calls):
        call()
    settle()
    return max(1e-9, (now() - started) / calls)


def fit_cost(points: Sequence[tuple[float, float]]) -> LinearCost:
    """Fit the seconds that batches of some sizes take."""
    fixed, slope = _fit_line(points)
    return LinearCost(fixed_seconds=fixed, per_item_seconds=slope)


def fit_bytes(points: Sequence[tuple[float, int]]) -> LinearBytes:
    """Fit the device memory that batches of some sizes take, and no size less than it was seen to take."""
    fixed, slope = _fit_line([(size, float(found)) for size, found in points])
    lift = max(found - (fixed + slope * size) for size, found in points)
    return LinearBytes(fixed_bytes=math.ceil(fixed + max(0.0, lift)), sample_bytes=math.ceil(slope))


def _fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit `fixed + size * slope` to (size, value), by least squares of relative errors, neither part negative."""
    largest = max(value for _, value in points)
    weights = [1 / max(value, NEGLIGIBLE_RATIO * largest, 1e-9) ** 2 for _, value in points]
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
