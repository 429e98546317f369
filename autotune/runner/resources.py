"""Tells what the trial under way uses: host memory, /dev/shm, and whether the kernel had to kill.

In a sandbox the numbers are exact and cost one file each. Without one, the tree is walked now and then for an upper
bound of its memory, and for the exact sum when somebody asks; /dev/shm is compared with how full it was before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autotune.protocol.budgets import Budgets
from autotune.runner.memory_cgroup import MemoryCgroup
from autotune.system.cgroups import count_oom_kills, find_own_memory_groups, read_memory_use
from autotune.system.machine import AvailableMemory, read_shm
from autotune.system.processes import PROC, SHM, list_tree, measure_pss, memory_upper_bound
from autotune.units import format_bytes

TREE_SECONDS: Final = 0.25  # between two walks over the tree, at 0.1 ms a process
NEAR_BUDGET_POLL_SECONDS: Final = 0.01  # a trial may take 1 GB a second
NEAR_BUDGET_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a trial uses at one moment, or what it used at its peak.

    Attributes:
        host_bytes: Memory of its processes and of /dev/shm: an upper bound unless `exact`; at a peak, 0 when it was
            never read exactly.
        exact: Whether `host_bytes` is exact.
        shm_bytes: The part in /dev/shm.
        shm_size_bytes: Size of the /dev/shm that it has.
        available_bytes: Memory that the machine or container can still give.
        oom_kills: Processes that the kernel's out-of-memory killer took since the trial's first one was started.
    """

    host_bytes: int = 0
    exact: bool = True
    shm_bytes: int = 0
    shm_size_bytes: int = 0
    available_bytes: int = 0
    oom_kills: int = 0

    def raise_peak(self, now: ResourceUsage) -> ResourceUsage:
        """Give the peak after one more reading; where memory is exact only once, the queue may have been longer."""
        shm_bytes = max(self.shm_bytes, now.shm_bytes)
        host_bytes = now.host_bytes - now.shm_bytes + shm_bytes if now.exact else 0
        return replace(now, host_bytes=max(self.host_bytes, host_bytes), exact=True, shm_bytes=shm_bytes)

    def share(self, processes: int) -> ResourceUsage:
        """Give the part that each of so many training processes has in it."""
        return replace(self, host_bytes=self.host_bytes // processes, shm_bytes=self.shm_bytes // processes)

    def describe_shm(self) -> str:
        """Say what was used of /dev/shm, to be put behind a sentence."""
        return f": {format_bytes(self.shm_bytes)} used of {format_bytes(self.shm_size_bytes)}"


class UsageMonitor:
    """Reads what one trial uses, more often where it is near a budget, and keeps the peak of a command.

    Attributes:
        peak: What the command under way used at most.
        seen: The processes that have belonged to the trial.
    """

    def __init__(self, pid: int, budgets: Budgets, cgroup: MemoryCgroup | None, *, own_shm: bool) -> None:
        self.peak = ResourceUsage()
        self.seen: set[int] = set()
        self._pid = pid
        self._budgets = budgets
        self._cgroup = cgroup
        self._own_shm = own_shm
        self._shm = Path(f"{PROC}/{pid}/root{SHM}") if own_shm else SHM
        self._shm_size = 0
        self._shm_free_before = read_shm(SHM)[1]
        self._is_shm_mounted = not own_shm
        self._is_memory_near = self._is_shm_near = False
        self._next_walk = 0.0
        self._available = AvailableMemory()
        self._kill_counters = [cgroup.folder] if cgroup is not None else find_own_memory_groups()
        self._kills_before = self._count_oom_kills()

    @property
    def is_near_budget(self) -> bool:
        """Whether the next reading should come soon."""
        return self._is_memory_near or self._is_shm_near

    def reset_peak(self) -> None:
        """Forget the peak: another command begins."""
        self.peak = ResourceUsage()

    def read(self, *, exact: bool = False) -> ResourceUsage:
        """Read what the trial uses now; `exact` numbers cost about 2 ms a process where there is no cgroup."""
        shm_bytes = self._read_shm()
        if self._cgroup is None:
            host_bytes, exact = self._read_tree(shm_bytes, exact=exact)
        else:
            host_bytes, exact = self._read_cgroup(self._cgroup), True
        self._is_shm_near = shm_bytes > NEAR_BUDGET_RATIO * self._budgets.shm_bytes
        if host_bytes > shm_bytes:  # else the tree was not walked
            self._is_memory_near = host_bytes > NEAR_BUDGET_RATIO * self._budgets.memory_bytes
        oom_kills = self._count_oom_kills() - self._kills_before
        now = ResourceUsage(host_bytes, exact, shm_bytes, self._shm_size, self._available.read(), oom_kills)
        self.peak = self.peak.raise_peak(now)
        return now

    def walk(self) -> list[int]:
        """List the processes of the trial's tree, and remember them."""
        tree = list_tree(self._pid)
        self.seen.update(tree)
        return tree

    def _read_cgroup(self, cgroup: MemoryCgroup) -> int:
        if not self._own_shm:  # names that the dead leave in a shared one are found by their numbers
            self.seen.update(cgroup.list_processes())
        return read_memory_use(cgroup.folder)

    def _read_tree(self, shm_bytes: int, *, exact: bool) -> tuple[int, bool]:
        tree = self.walk() if exact or self._is_walk_due() else []
        private_bytes = measure_pss(tree) if exact else memory_upper_bound(tree)
        return private_bytes + shm_bytes, exact and bool(tree)

    def _is_walk_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_walk:
            return False
        self._next_walk = now + (NEAR_BUDGET_POLL_SECONDS if self._is_memory_near else TREE_SECONDS)
        return True

    def _read_shm(self) -> int:
        """Read what lies in /dev/shm: all of it where it is the trial's own, else what has come since the start."""
        size, free = read_shm(self._shm)
        self._shm_size = size or self._shm_size
        if not self._own_shm:
            return max(0, self._shm_free_before - free)
        self._is_shm_mounted = self._is_shm_mounted or self._has_own_mount()
        return size - free if self._is_shm_mounted else 0

    def _has_own_mount(self) -> bool:
        """Tell whether the trial has mounted its own yet: until then its root shows everybody's."""
        try:
            return self._shm.stat().st_dev != SHM.stat().st_dev
        except OSError:
            return False

    def _count_oom_kills(self) -> int:
        return sum(count_oom_kills(folder) for folder in self._kill_counters)
