"""What our cgroups allow and what they have counted.

Every ancestor of our cgroup is asked, version 2 first, then version 1, and "no limit" is a legal answer. All roots are
parameters: a test hands over a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.system.kernel_files import CGROUP, PROC, read_int, read_numbers, read_text

UNLIMITED_V1: Final = 1 << 60  # version 1 writes "no limit" as 9223372036854771712


def walk_ancestors(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Yield our cgroup's folder and its ancestors up to the root of the mount.

    An empty `controller` stands for version 2. A container often sees its own path of the host in
    /proc/self/cgroup but has only its own subtree mounted; folders that do not exist are passed over.
    """
    for line in read_text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        root = _find_mount(cgroup, controllers, controller)
        if root is not None:
            folder = root / path.lstrip("/")
            above = (folder, *folder.parents)
            yield from (ancestor for ancestor in above[: above.index(root) + 1] if ancestor.is_dir())


def _find_mount(cgroup: Path, controllers: str, controller: str) -> Path | None:
    names = (controllers, controller) if controller else ("unified", "")
    return next((cgroup / name for name in names if (cgroup / name).is_dir()), None)


def read_cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """Read the smallest CPU quota of our cgroup and all its ancestors, in CPUs; None when there is none."""
    quotas = [_read_quota_v2(folder) for folder in walk_ancestors(proc, cgroup, "")]
    quotas += [_read_quota_v1(folder) for folder in walk_ancestors(proc, cgroup, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _read_quota_v2(folder: Path) -> float | None:
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _read_quota_v1(folder: Path) -> float | None:
    quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
    return None if quota is None or period is None or quota <= 0 else quota / period


@dataclass(frozen=True, slots=True)
class CpuThrottling:
    """How often one cgroup's CPU quota was used up, since the cgroup was made.; no period passes without a quota.

    Attributes:
        periods: Enforcement periods in which the cgroup ran.
        throttled_periods: Those in which it had to stop before the period's end.
        throttled_seconds: How long its CPUs were stopped, all together; 0 where the kernel does not tell.
    """

    periods: int
    throttled_periods: int
    throttled_seconds: float = 0.0

    @property
    def throttled_share(self) -> float:
        """Share of the periods in which it had to stop, between 0 and 1; 0 where none has passed."""
        return min(1.0, self.throttled_periods / self.periods) if self.periods else 0.0


def read_cpu_throttling(proc: Path = PROC, cgroup: Path = CGROUP) -> tuple[CpuThrottling, ...]:
    """Read how often the CPU quotas that hold for us were used up: our own cgroup's first, then each ancestor's."""
    folders = (folder for controller in ("", "cpu") for folder in walk_ancestors(proc, cgroup, controller))
    counted = (read_numbers(folder / "cpu.stat") for folder in folders)
    return tuple(
        CpuThrottling(
            periods=numbers["nr_periods"],
            throttled_periods=numbers["nr_throttled"],
            throttled_seconds=numbers.get("throttled_usec", 0) * 1e-6 + numbers.get("throttled_time", 0) * 1e-9,
        )  # version 2 counts microseconds, version 1 nanoseconds
        for numbers in counted
        if "nr_periods" in numbers and "nr_throttled" in numbers
    )


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of memory that holds for us, and the cgroup that sets it."""

    limit_bytes: int
    folder: Path
    usage_name: str
    cache_key: str

    def read_room(self) -> int:
        """Read the bytes that may still be taken; file cache counts as free, for the kernel gives it back on demand."""
        usage = read_int(self.folder / self.usage_name) or 0
        cache = read_numbers(self.folder / "memory.stat").get(self.cache_key, 0)
        return max(0, self.limit_bytes - max(0, usage - cache))


def list_memory_limits(proc: Path = PROC, cgroup: Path = CGROUP) -> list[MemoryLimit]:
    """List the memory limits of our cgroup and all its ancestors."""
    kinds = (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )  # versions 2 and 1
    return [
        MemoryLimit(limit, folder, usage_name, cache_key)
        for controller, limit_name, usage_name, cache_key in kinds
        for folder in walk_ancestors(proc, cgroup, controller)
        if (limit := read_int(folder / limit_name)) is not None and limit < UNLIMITED_V1
    ]


def find_own_memory_groups(proc: Path = PROC, cgroup: Path = CGROUP) -> list[Path]:
    """Find the groups in which an OOM kill of ours would be counted: our own of either version."""
    found = (next(walk_ancestors(proc, cgroup, controller), None) for controller in ("", "memory"))
    return [folder for folder in found if folder is not None]


def count_oom_kills(folder: Path) -> int:
    """Count the OOM kills that a memory cgroup has seen; 0 where it does not tell."""
    found = (read_numbers(folder / name).get("oom_kill") for name in ("memory.events", "memory.oom_control"))
    return next((count for count in found if count is not None), 0)


def read_memory_use(folder: Path) -> int:
    """Read what a cgroup's processes use, in bytes: anonymous and shared memory, each page once, no file cache."""
    numbers = read_numbers(folder / "memory.stat")
    if "total_rss" in numbers:  # version 1
        return numbers["total_rss"] + numbers.get("total_shmem", 0)
    return numbers.get("anon", 0) + numbers.get("shmem", 0)
