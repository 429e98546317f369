"""What the running trial uses: host memory, /dev/shm and time; and whether it must end for exceeding a limit.

Cheap upper bounds are read at every tick: resident memory of the trial's processes, and how much of /dev/shm was filled
since its start. Exact numbers cost milliseconds per process and are read where an upper bound exceeds a budget, and at
the end of a trial: the proportional memory (PSS) of all processes and the files in /dev/shm that they use.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final, Literal

from autotune.protocol.budgets import HOST_MEMORY, SHARED_MEMORY, Budgets
from autotune.system.cgroups import count_oom_kills, find_own_memory_groups
from autotune.system.machine import AvailableMemory, read_shm
from autotune.system.processes import list_names, list_tree, measure_pss, measure_segments, memory_upper_bound
from autotune.units import format_bytes, format_seconds

TREE_SECONDS: Final = 0.25  # between two walks over the processes, at 0.1 ms for each
NEAR_BUDGET_POLL_SECONDS: Final = 0.01  # a trial may take 1 GB a second
NEAR_BUDGET_RATIO: Final = 0.5

Reason = Literal["stalled", "timed_out", "out_of_memory", "shm_exhausted", "too_many_files"]


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a trial uses now, or its peaks.

    Attributes:
        host_bytes: Memory of its processes and of /dev/shm: an upper bound unless `is_exact`; in peaks, 0 if it was
            never measured exactly.
        shm_bytes: The part in /dev/shm.
        shm_size_bytes: Size of /dev/shm.
        available_bytes: Memory that the machine or container still has.
        oom_kills: Processes that the kernel's out-of-memory killer killed since the trial's process started.
    """

    host_bytes: int = 0
    is_exact: bool = True
    shm_bytes: int = 0
    shm_size_bytes: int = 0
    available_bytes: int = 0
    oom_kills: int = 0

    def raise_peak(self, now: ResourceUsage) -> ResourceUsage:
        """Return the peaks after one more reading; what was exact may have used more of /dev/shm before."""
        shm_bytes = max(self.shm_bytes, now.shm_bytes)
        host_bytes = now.host_bytes - now.shm_bytes + shm_bytes if now.is_exact else 0
        return replace(now, host_bytes=max(self.host_bytes, host_bytes), is_exact=True, shm_bytes=shm_bytes)

    def share(self, processes: int) -> ResourceUsage:
        """Return the share of each of several training processes."""
        return replace(self, host_bytes=self.host_bytes // processes, shm_bytes=self.shm_bytes // processes)

    def describe_shm(self) -> str:
        """Describe the use of /dev/shm, to be appended to a sentence."""
        return f": {format_bytes(self.shm_bytes)} used of {format_bytes(self.shm_size_bytes)}"


class ResourceMonitor:
    """Reads what one trial uses, and keeps the peaks of a command.

    Args:
        supervisor: Process ID of the supervisor; all its descendants belong to the trial, which shares its memory.
        budgets: Near these, readings are more frequent.

    Attributes:
        peak: Peaks of the running command.
        is_near_budget: Whether the next reading should come soon.
        seen: Processes that were seen to belong to the trial.
    """

    def __init__(self, supervisor: int, budgets: Budgets) -> None:
        self.peak = ResourceUsage()
        self.is_near_budget = False
        self._supervisor = supervisor
        self._budgets = budgets
        self._shm_free_before = read_shm()[1]
        self._names_before = list_names(())
        self._next_walk = 0.0
        self._bound = 0  # of the memory outside /dev/shm, from the last walk
        self.seen: set[int] = set()
        self._available = AvailableMemory()
        self._memory_groups = find_own_memory_groups()
        self._kills_before = self._count_oom_kills()

    def reset_peak(self) -> None:
        """Forget the peaks, as another command begins."""
        self.peak = ResourceUsage()

    def list_processes(self) -> list[int]:
        """List the processes of the trial."""
        tree = list_tree(self._supervisor)[1:]
        self.seen.update(tree)
        return tree

    def read(self, *, exact: bool = False) -> ResourceUsage:
        """Read what the trial uses now."""
        shm_size, shm_free = read_shm()
        shm_bytes = max(0, self._shm_free_before - shm_free)
        if exact:
            processes = self.list_processes()
            names = list_names(self.seen, self._names_before)
            shm_bytes, unmapped = measure_segments(processes, names)
            host_bytes = measure_pss([self._supervisor, *processes]) + unmapped
        else:
            if time.monotonic() >= self._next_walk:
                self._bound = memory_upper_bound(self.list_processes())
                self._next_walk = time.monotonic() + (NEAR_BUDGET_POLL_SECONDS if self.is_near_budget else TREE_SECONDS)
            host_bytes = self._bound + shm_bytes
        is_memory_near = host_bytes > NEAR_BUDGET_RATIO * self._budgets.memory_bytes
        self.is_near_budget = is_memory_near or shm_bytes > NEAR_BUDGET_RATIO * self._budgets.shm_bytes
        oom_kills = self._count_oom_kills() - self._kills_before
        now = ResourceUsage(host_bytes, exact, shm_bytes, shm_size, self._available.read(), oom_kills)
        self.peak = self.peak.raise_peak(now)
        return now

    def _count_oom_kills(self) -> int:
        return sum(count_oom_kills(folder) for folder in self._memory_groups)


@dataclass(frozen=True, slots=True)
class LimitExcess:
    """Why a trial must end, and the rest of a sentence about it."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What one command may use: budgets, seconds without progress, and seconds in total."""

    budgets: Budgets
    stall_seconds: float
    deadline_seconds: float

    def find_excess(self, monitor: ResourceMonitor, idle_seconds: float, running_seconds: float) -> LimitExcess | None:
        """Read what the trial uses, exactly if a bound exceeds a budget, and return the limit that it exceeds."""
        usage = monitor.read()
        if usage.host_bytes > self.budgets.memory_bytes or usage.shm_bytes > self.budgets.shm_bytes:
            usage = monitor.read(exact=True)
        return self.check_resources(usage) or self.check_time(idle_seconds, running_seconds)

    def check_resources(self, usage: ResourceUsage) -> LimitExcess | None:
        """Return the budget that a trial exceeds; the one that harms other processes most comes first."""
        budgets = self.budgets
        if usage.available_bytes < budgets.reserve_bytes:
            left, reserve = format_bytes(usage.available_bytes), format_bytes(budgets.reserve_bytes)
            message = f"left the machine {left} of memory, less than the {reserve} reserved for other processes"
            return LimitExcess(HOST_MEMORY.outcome, message)
        if usage.is_exact and usage.host_bytes > budgets.memory_bytes:
            message = HOST_MEMORY.describe_excess(usage.host_bytes, budgets.memory_bytes)
            return LimitExcess(HOST_MEMORY.outcome, message)
        if usage.shm_bytes > budgets.shm_bytes:
            message = SHARED_MEMORY.describe_excess(usage.shm_bytes, budgets.shm_bytes)
            return LimitExcess(SHARED_MEMORY.outcome, message)
        return None

    def check_time(self, idle_seconds: float, running_seconds: float) -> LimitExcess | None:
        """Return the time limit that a command exceeds."""
        if idle_seconds > self.stall_seconds:
            idle, limit = format_seconds(idle_seconds), format_seconds(self.stall_seconds)
            return LimitExcess("stalled", f"made no progress for {idle} (limit {limit})")
        if running_seconds > self.deadline_seconds:
            running, limit = format_seconds(running_seconds), format_seconds(self.deadline_seconds)
            return LimitExcess("timed_out", f"was not done after {running} (limit {limit})")
        return None
