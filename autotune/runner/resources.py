"""Host memory, /dev/shm and time that the running trial uses, and the limits at which it must end.

Cheap upper bounds are read: at every tick, how much of /dev/shm was filled since the trial's start; at every walk over
its processes, their resident memory. Exact numbers cost milliseconds per process: the proportional memory (PSS) of all
processes and the files in /dev/shm that they use. They are read at the end of a trial; a few times before if its
workers may end earlier, which takes 1% to 2% of the CPU time of a short trial with many workers; and whenever an upper
bound exceeds a budget that the trial may have reached since the last exact reading. From one exact reading to the next,
resident memory of the same processes grows at most as fast as their memory: pages become shared only by a fork. What is
added to /dev/shm meanwhile counts as the trial's.
"""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import dataclass, replace
from typing import Final

from autotune.profiles.schema import Budgets
from autotune.protocol.budgets import HOST_MEMORY, SHARED_MEMORY
from autotune.protocol.measurement import TrialStatus
from autotune.system.cgroups import count_oom_kills, find_own_memory_groups
from autotune.system.machine import AvailableMemory, read_shm
from autotune.system.procfs import list_names, list_tree, measure_pss, measure_segments, memory_upper_bound, signal_all
from autotune.units import format_bytes, format_seconds

TREE_SECONDS: Final = 0.25  # between two walks over the processes, at 0.1 ms for each
TICK_SECONDS: Final = 0.05  # between two readings
SAMPLE_SECONDS: Final = 0.5  # from the start of a command to its first exact reading: workers may end before it does
SAMPLE_FACTOR: Final = 4.0  # between the times of exact readings; one of 28 workers takes 90 ms of CPU time
MIN_SECONDS: Final = 0.005  # between these near a budget
FILL_RATE: Final = 2 * 2**30  # bytes that one CPU may fill in a second


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resources that a trial uses now, or the peaks of a command."""

    host_bytes: int = 0  # with /dev/shm; 0 if it was not measured exactly
    shm_bytes: int = 0
    shm_size_bytes: int = 0  # of /dev/shm
    available_bytes: int = 0  # left in the machine or container
    oom_kills: int = 0  # by the kernel's out-of-memory killer since the trial's process started

    def raise_peak(self, now: ResourceUsage) -> ResourceUsage:
        """Return the peaks after one more reading; an exact one may have used more of /dev/shm before."""
        shm_bytes = max(self.shm_bytes, now.shm_bytes)
        host_bytes = now.host_bytes - now.shm_bytes + shm_bytes if now.host_bytes else 0
        return replace(now, host_bytes=max(self.host_bytes, host_bytes), shm_bytes=shm_bytes)

    def describe_shm(self) -> str:
        """Describe the use of /dev/shm, to be appended to a sentence."""
        return f": {format_bytes(self.shm_bytes)} used of {format_bytes(self.shm_size_bytes)}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one command: budgets, seconds without progress, and seconds in total."""

    budgets: Budgets
    stall_seconds: float
    deadline_seconds: float

    def find_excess(
        self, usage: ResourceUsage, idle_seconds: float, running_seconds: float
    ) -> tuple[TrialStatus, str] | None:
        """Return kind and message of an exceeded limit; the one that affects other processes most comes first."""
        budgets = self.budgets
        if usage.available_bytes < budgets.reserve_bytes:
            left, reserve = format_bytes(usage.available_bytes), format_bytes(budgets.reserve_bytes)
            used = HOST_MEMORY.describe_excess(usage.host_bytes, budgets.memory_bytes)
            message = f"left the machine {left} of memory, less than the {reserve} reserved for other processes"
            return HOST_MEMORY.status, f"{message}; it {used}"
        if usage.host_bytes > budgets.memory_bytes:
            return HOST_MEMORY.status, HOST_MEMORY.describe_excess(usage.host_bytes, budgets.memory_bytes)
        if usage.shm_bytes > budgets.shm_bytes:
            return SHARED_MEMORY.status, SHARED_MEMORY.describe_excess(usage.shm_bytes, budgets.shm_bytes)
        if idle_seconds > self.stall_seconds:
            idle, limit = format_seconds(idle_seconds), format_seconds(self.stall_seconds)
            return "stalled", f"made no progress for {idle} (limit {limit})"
        if running_seconds > self.deadline_seconds:
            running, limit = format_seconds(running_seconds), format_seconds(self.deadline_seconds)
            return "timed_out", f"was not done after {running} (limit {limit})"
        return None


class ResourceMonitor:
    """Reads the resources that one trial uses: the descendants of the supervisor, which share its memory."""

    def __init__(self, supervisor: int) -> None:
        self.peak = ResourceUsage()  # of the running command
        self.tick_seconds = TICK_SECONDS  # until the next reading should come
        self.seen: set[int] = set()  # processes of the trial, of which some may have ended
        self._supervisor = supervisor
        self._shm_free_before = read_shm()[1]
        self._others_shm = 0  # bytes that other processes have put into /dev/shm since, by the last exact reading
        self._started = time.monotonic()
        self._next_walk = self._next_exact = self._next_sample = 0.0
        self._bound = self._least = 0  # of the memory outside /dev/shm, from the last walk
        self._measured: tuple[int, int, set[int]] = 0, 0, set()  # at the last exact reading: memory, bound, processes
        self._rate = FILL_RATE * len(os.sched_getaffinity(0))
        self._available = AvailableMemory()
        self._memory_groups = find_own_memory_groups()
        self._kills_before = self._count_oom_kills()

    def list_processes(self) -> list[int]:
        """List the processes of the trial."""
        tree = list_tree(self._supervisor)[1:]
        self.seen.update(tree)
        return tree

    def list_owners(self) -> list[int]:
        """List the processes of the trial that have names in /dev/shm; some may have ended."""
        return list({int(name.split("_")[1]) for name in list_names(self.seen)})

    def start_command(self, *, is_sampled: bool = True) -> None:
        """Forget the peaks of the last command, and read exact numbers during it if workers may end before it does."""
        self.peak, self._started = ResourceUsage(), time.monotonic()
        self._next_sample = self._started + SAMPLE_SECONDS if is_sampled else math.inf

    def read(self, budgets: Budgets, *, exact: bool = False) -> ResourceUsage:
        """Read the current use; exactly if asked for, or if a budget may be exceeded."""
        now, available_bytes = time.monotonic(), self._available.read()
        shm_size, filled = self._read_filled()
        self._others_shm = min(self._others_shm, filled)
        shm_bytes = filled - self._others_shm
        is_walk = now >= self._next_walk
        if is_walk:
            processes, (memory, bound, measured) = self.list_processes(), self._measured
            self._bound = memory_upper_bound(processes)
            self._least = memory + self._bound - bound if measured.issuperset(processes) else 0
        memory_left, shm_left = budgets.memory_bytes - self._bound - shm_bytes, budgets.shm_bytes - shm_bytes
        if now >= self._next_sample:
            self._next_sample, exact = self._started + SAMPLE_FACTOR * (now - self._started), True
        exact |= available_bytes < budgets.reserve_bytes
        if exact or (min(memory_left, shm_left) < 0 and now >= self._next_exact):
            processes = self.list_processes()
            stopped = processes if shm_bytes > budgets.shm_bytes else ()  # else they fill more meanwhile
            try:
                signal_all(stopped, signal.SIGSTOP)
                _, filled = self._read_filled()
                shm_bytes, unmapped = measure_segments(processes, list_names(self.seen))
                host_bytes = measure_pss([self._supervisor, *processes]) + unmapped
            finally:
                signal_all(stopped, signal.SIGCONT)
            self._others_shm = max(0, filled - shm_bytes)
            self._measured = host_bytes - shm_bytes, memory_upper_bound(processes), set(processes)
            memory_left, shm_left = budgets.memory_bytes - host_bytes, budgets.shm_bytes - shm_bytes
            seconds = time.monotonic() - now
            self._next_exact = now + max(MIN_SECONDS, seconds, min(memory_left, shm_left) / self._rate)
        else:
            host_bytes = self._least if self._least > budgets.memory_bytes else 0
        memory_seconds, shm_seconds = memory_left / self._rate, shm_left / self._rate
        if min(memory_left, shm_left) < 0:
            memory_seconds = min(self._next_exact - now, (budgets.memory_bytes - self._least) / self._rate)
            shm_seconds = self._next_exact - now
        self.tick_seconds = min(TICK_SECONDS, max(MIN_SECONDS, min(memory_seconds, shm_seconds)))
        if is_walk:  # which reads nothing of /dev/shm
            self._next_walk = now + min(TREE_SECONDS, max(MIN_SECONDS, memory_seconds))
        oom_kills = self._count_oom_kills() - self._kills_before
        usage = ResourceUsage(host_bytes, shm_bytes, shm_size, available_bytes, oom_kills)
        self.peak = self.peak.raise_peak(usage)
        return usage

    def _read_filled(self) -> tuple[int, int]:
        """Return the size of /dev/shm, and how much of it was filled since the start."""
        size, free = read_shm()
        return size, max(0, self._shm_free_before - free)

    def _count_oom_kills(self) -> int:
        return sum(count_oom_kills(folder) for folder in self._memory_groups)
