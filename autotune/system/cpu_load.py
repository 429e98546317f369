"""How busy the CPUs are, by us and by others: the kernel's counters, and what two readings of them tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.system.cgroups import CpuThrottling, read_cpu_throttling
from autotune.system.kernel_files import CGROUP, PROC


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """What the kernel has counted so far; only the difference of two readings means something.

    Attributes:
        busy_seconds: CPU time of all processes and of the kernel, over all CPUs of the machine.
        total_seconds: The same with idle, waiting and stolen time: CPUs x time since boot.
        steal_seconds: CPU time that the host gave to other guests while this one wanted to run.
        throttling: Use of the CPU quota of our own cgroup and of each ancestor, our own first.
    """

    busy_seconds: float
    total_seconds: float
    steal_seconds: float
    throttling: tuple[CpuThrottling, ...] = ()


def read_cpu_counters(proc: Path = PROC, cgroup: Path = CGROUP) -> CpuCounters | None:
    """Read the kernel's counters of this moment; None where psutil cannot read those of CPU time."""
    try:
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq  # with what our own guests use
        total = busy + times.idle + times.iowait + times.steal
    except (OSError, ValueError, TypeError, AttributeError):  # the latter two where a column is missing
        return None
    return CpuCounters(busy, total, times.steal, throttling=read_cpu_throttling(proc, cgroup))


def background_cpus(before: CpuCounters, after: CpuCounters, seconds: float, usable_cpus: float) -> float:
    """Tell how many of the usable CPUs others kept busy between two readings while our own processes were idle.

    The machine may have more CPUs than we may keep busy, and others are welcome to those.
    """
    busy_cpus = (after.busy_seconds - before.busy_seconds) / seconds
    spare_cpus = (after.total_seconds - before.total_seconds) / seconds - usable_cpus
    return max(0.0, busy_cpus - max(0.0, spare_cpus))


def steal_share(before: CpuCounters, after: CpuCounters) -> float:
    """Tell which share of all CPU time between two readings the host gave to others, between 0 and 1."""
    return _divide(after.steal_seconds - before.steal_seconds, after.total_seconds - before.total_seconds)


def throttled_share(before: CpuCounters, after: CpuCounters) -> float:
    """Tell in which share of the periods between two readings a quota was used up, between 0 and 1; 0 without a quota.

    Of several cgroups with a quota the one throttled most counts: the most in between, not since they were made, for
    an old pod's history would hide what happens to the young container in it.
    """
    uses = [
        (late.throttled_periods - early.throttled_periods, late.periods - early.periods)
        for early, late in zip(before.throttling, after.throttling, strict=False)  # unequal only if we were moved
    ]
    return _divide(*max(uses, default=(0, 0)))


def _divide(part: float, whole: float) -> float:
    """Give a share between 0 and 1, also for counters that went back, as a hypervisor's may."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
