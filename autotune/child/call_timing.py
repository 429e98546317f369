"""Times what the probe calls: one by one where the host does the work, many at once where a device does."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Final, NamedTuple

WARM_UP_CALLS: Final = 3
WINDOW_SECONDS: Final = 0.1  # of device calls with one synchronisation for all
MIN_WINDOW_CALLS: Final = 5
MAX_WINDOW_CALLS: Final = 200


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
