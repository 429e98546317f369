"""Limits and counters of our cgroup and its ancestors, of versions 2 and 1, and of CPU time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from autotune.system.procfs import CGROUP, PROC, read_numbers, read_text

UNLIMITED_V1: Final = 1 << 60  # version 1 writes "no limit" as 9223372036854771712
MEMORY_FILES: Final = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.high", "memory.current", ("inactive_file", "active_file")),  # the kernel slows what exceeds it
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)  # limit, use, and reclaimable file cache in memory.stat, of versions 2 and 1


def walk_ancestors(proc: Path, cgroup: Path, *controllers: str) -> Iterator[Path]:
    """Yield our cgroup's folder and its ancestors up to the root of the mount; controller `""` is version 2."""
    lines = [(*line.split(":", 2), "", "")[1:3] for line in read_text(proc / "self" / "cgroup").splitlines()]
    for controller in controllers:
        for joint, path in lines:
            names = (joint, controller) if controller else ("unified", "")
            root = next((cgroup / name for name in names if (cgroup / name).is_dir()), None)
            if controller in joint.split(",") and root is not None:  # a container may mount a part of the host's path
                above = (root / path.lstrip("/"), *(root / path.lstrip("/")).parents)
                yield from (folder for folder in above[: above.index(root) + 1] if folder.is_dir())


def read_cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """Return the smallest CPU quota of our cgroup and its ancestors, in CPUs."""
    quotas = []
    for folder in walk_ancestors(proc, cgroup, "", "cpu"):
        names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")  # of version 2; of version 1
        words = " ".join(read_text(folder / name) for name in names).split()
        limit = [int(word) for word in words if word.isdecimal()]  # neither "max" nor -1
        quotas += [limit[0] / limit[1]] if len(limit) == 2 and all(limit) else []
    return min(quotas, default=None)


class CpuThrottling(NamedTuple):
    """Use of one cgroup's CPU quota since the cgroup was created: enforcement periods, and those cut short."""

    periods: int
    throttled_periods: int

    @property
    def throttled_share(self) -> float:
        """Share of the periods in which it was stopped."""
        return _divide(self.throttled_periods, self.periods)


def read_cpu_throttling(proc: Path = PROC, cgroup: Path = CGROUP) -> tuple[CpuThrottling, ...]:
    """Return the use of each CPU quota that applies to us: our own cgroup's first, then each ancestor's."""
    counted = (read_numbers(folder / "cpu.stat") for folder in walk_ancestors(proc, cgroup, "", "cpu"))
    names = ("nr_periods", "nr_throttled")
    return tuple(CpuThrottling(*map(one.__getitem__, names)) for one in counted if one.keys() >= set(names))


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """The kernel's counters since boot, over all CPUs, and the use of the CPU quota of our cgroup and its ancestors."""

    busy_seconds: float  # of all processes and of the kernel
    total_seconds: float  # with idle, waiting and stolen time
    steal_seconds: float  # that the host gave to other virtual machines
    throttling: tuple[CpuThrottling, ...] = ()


def read_cpu_counters(proc: Path = PROC, cgroup: Path = CGROUP) -> CpuCounters:
    """Read the counters."""
    fields = read_text(proc / "stat").split()[1:9]  # of guests is in `user`, which is the first
    seconds = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    total, idle, steal = sum(seconds), sum(seconds[3:5]), sum(seconds[7:])
    return CpuCounters(total - idle - steal, total, steal, throttling=read_cpu_throttling(proc, cgroup))


def background_cpus(before: CpuCounters, after: CpuCounters, seconds: float, usable_cpus: float) -> float:
    """Return how many of the usable CPUs other processes kept busy between two readings while ours were idle."""
    busy_cpus = (after.busy_seconds - before.busy_seconds) / seconds
    unusable_cpus = (after.total_seconds - before.total_seconds) / seconds - usable_cpus
    return max(0.0, busy_cpus - max(0.0, unusable_cpus))


def steal_share(before: CpuCounters, after: CpuCounters) -> float:
    """Return the share of CPU time between two readings that the host gave to other virtual machines."""
    return _divide(after.steal_seconds - before.steal_seconds, after.total_seconds - before.total_seconds)


def throttled_share(before: CpuCounters, after: CpuCounters) -> float:
    """Return the share of throttled periods between two readings, of the cgroup throttled most; 0 without a quota."""
    uses = [
        (late.throttled_periods - early.throttled_periods, late.periods - early.periods)
        for early, late in zip(before.throttling, after.throttling, strict=False)  # unequal only if we were moved
    ]
    return _divide(*max(uses, default=(0, 0)))


def _divide(part: float, whole: float) -> float:
    """Return a share between 0 and 1, even if counters went back, as a hypervisor's may."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def list_memory_limits(proc: Path = PROC, cgroup: Path = CGROUP) -> list[tuple[int, Path, tuple[str, ...]]]:
    """List the memory limits of our cgroup and its ancestors: bytes, file of the use, keys of its reclaimable cache."""
    return [
        (limit, folder / usage_name, cache_keys)
        for folder in walk_ancestors(proc, cgroup, "", "memory")
        for limit_name, usage_name, cache_keys in MEMORY_FILES
        if (text := read_text(folder / limit_name).strip()).isdecimal() and (limit := int(text)) < UNLIMITED_V1
    ]


def read_available(limit_bytes: int, usage: Path, cache_keys: Sequence[str]) -> int:
    """Return the bytes left under a memory limit; file cache counts as free, in use or not, as in MemAvailable."""
    numbers = read_numbers(usage.with_name("memory.stat"))
    cache = sum(numbers.get(key, 0) for key in cache_keys)
    return max(0, limit_bytes - max(0, int(read_text(usage) or 0) - cache))


def find_own_memory_groups(proc: Path = PROC, cgroup: Path = CGROUP) -> list[Path]:
    """Find our own memory cgroups, of both versions, which count OOM kills of our processes."""
    return [folder for one in ("", "memory") for folder in [*walk_ancestors(proc, cgroup, one)][:1]]


def count_oom_kills(folder: Path) -> int:
    """Return the OOM kills that a memory cgroup has counted; 0 if unknown."""
    return (read_numbers(folder / "memory.events") | read_numbers(folder / "memory.oom_control")).get("oom_kill", 0)
