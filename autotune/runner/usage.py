"""Tells what the trial under way uses: host memory, /dev/shm, and whether the kernel had to kill.

Inside walls the numbers are exact and cost one file each. Outside, the tree is walked now and then for an upper
bound of its memory, and for the exact sum when somebody asks; /dev/shm is compared with how full it was before.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from autotune.config import Bytes, FrozenModel
from autotune.runner.memory_cgroup import MemoryCgroup, count_oom_kills
from autotune.system.cgroups import walk_ancestors
from autotune.system.kernel_files import CGROUP, PROC, SHM
from autotune.system.machine import AvailableMemory, read_shm
from autotune.system.processes import list_tree, measure_pss, memory_upper_bound
from autotune.trial.budgets import Budgets

TREE_SECONDS: Final = 0.25  # between two walks over the tree: 0.1 ms a process
NEAR_BUDGET_POLL_SECONDS: Final = (
    0.01  # between two looks at a trial that is near its budget: it may take 1 GB a second
)
NEAR_BUDGET_RATIO: Final = 0.5  # of the budget


class Use(FrozenModel):
    """What a trial uses at one moment.

    Attributes:
        host_bytes: Memory of its processes and of /dev/shm; an upper bound unless `exact`.
        exact: Whether it is exact.
        shm_bytes: The part in /dev/shm.
    """

    host_bytes: Bytes
    exact: bool
    shm_bytes: Bytes


class UsageMonitor:
    """Reads one trial's use.

    Args:
        pid: The root of its process tree.
        budgets: What it may use; near a budget of memory or /dev/shm, looks are frequent.
        group: Its memory cgroup, if it has one.
        own_shm: Whether it has a /dev/shm of its own.
    """

    def __init__(self, pid: int, budgets: Budgets, group: MemoryCgroup | None, *, own_shm: bool) -> None:
        self.seen: set[int] = set()
        self._is_memory_near = self._is_shm_near = False
        self.shm_size_bytes = 0
        self._pid = pid
        self._limits = budgets
        self._group = group
        self._shm = Path(f"{PROC}/{pid}/root{SHM}") if own_shm else SHM
        self._own_shm = own_shm
        self._is_inside = not own_shm
        self._shm_free = read_shm(SHM)[1]
        self._available = AvailableMemory()
        self._next_walk = 0.0
        self._counters = [group.folder] if group is not None else _list_memory_groups()
        self._kills_before = self._count_kills()

    def read(self, *, exact: bool = False) -> Use:
        """Read what the trial uses now.

        Args:
            exact: Whether an exact number is worth about 2 ms a process.
        """
        shm_bytes = self._read_shm()
        if self._group is not None:
            if not self._own_shm:  # names that the dead leave in a shared one are found by their numbers
                self.seen.update(self._group.list_processes())
            use = Use(host_bytes=self._group.read_bytes(), exact=True, shm_bytes=shm_bytes)
        else:
            use = self._read_tree(shm_bytes, exact=exact)
        self._is_shm_near = shm_bytes > NEAR_BUDGET_RATIO * self._limits.shm_bytes
        if use.host_bytes > shm_bytes:  # else the tree was not walked
            self._is_memory_near = use.host_bytes > NEAR_BUDGET_RATIO * self._limits.memory_bytes
        return use

    @property
    def is_near(self) -> bool:
        """Whether the last reading was near a budget, so that the next one should come soon."""
        return self._is_memory_near or self._is_shm_near

    def _read_tree(self, shm_bytes: int, *, exact: bool) -> Use:
        tree = self.walk() if exact or self._is_walk_due() else []
        private = measure_pss(tree) if exact else memory_upper_bound(tree)
        return Use(host_bytes=private + shm_bytes, exact=exact and bool(tree), shm_bytes=shm_bytes)

    def read_available(self) -> int:
        """Read the bytes of memory that the machine or container can still give."""
        return self._available.read()

    def walk(self) -> list[int]:
        """List the processes of the trial's tree, and remember them."""
        tree = list_tree(self._pid)
        self.seen.update(tree)
        return tree

    def count_oom_kills(self) -> int:
        """Count what the kernel's out-of-memory killer took since the trial's processes were started."""
        return self._count_kills() - self._kills_before

    def _is_walk_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_walk:
            return False
        self._next_walk = now + (NEAR_BUDGET_POLL_SECONDS if self._is_memory_near else TREE_SECONDS)
        return True

    def _read_shm(self) -> int:
        """Read what lies in /dev/shm: all of it where it is the trial's own, else what has come since the start."""
        size, free = read_shm(self._shm)
        self.shm_size_bytes = size or self.shm_size_bytes
        if not self._own_shm:
            return max(0, self._shm_free - free)
        self._is_inside = self._is_inside or self._has_own_mount()
        return size - free if self._is_inside else 0

    def _has_own_mount(self) -> bool:
        """Tell whether the trial has mounted its own yet: until then its root shows everybody's."""
        try:
            return self._shm.stat().st_dev != SHM.stat().st_dev
        except OSError:
            return False

    def _count_kills(self) -> int:
        return sum(count_oom_kills(folder) for folder in self._counters)


def _list_memory_groups() -> list[Path]:
    """List the groups in which an OOM kill would be counted: ours of either version."""
    found = (next(walk_ancestors(PROC, CGROUP, controller), None) for controller in ("", "memory"))
    return [folder for folder in found if folder is not None]
