"""Limits and counters in the files of cgroups of version 2, 1 or both."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.system.cgroups import (
    CpuCounters,
    CpuThrottling,
    background_cpus,
    count_oom_kills,
    find_own_memory_groups,
    read_cpu_counters,
    read_cpu_quota,
    read_cpu_throttling,
    steal_share,
    throttled_share,
)
from autotune.system.machine import AvailableMemory, read_memory_limit
from tests.builders import GIB, MIB, make_counters, write_files

MEMINFO = f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable:   {10 * GIB // 1024} kB\n"
UNLIMITED_V1 = "9223372036854771712\n"
V2 = "0::/pod/box\n"
V1 = "5:cpuset:/\n4:cpu,cpuacct:/pod/box\n7:memory:/pod/box\n1:name=systemd:/x\n"
HYBRID = "3:cpu,cpuacct:/pod/box\n2:memory:/pod/box\n0::/pod/box\n"


def write_machine(root: Path, cgroups: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write /proc with a list of cgroups, and the files of the cgroups; return both folders."""
    return write_files(root / "proc", {"self/cgroup": cgroups, "meminfo": MEMINFO}), write_files(root / "cgroup", files)


def make_v1_quota(folder: str, quota: str, period: str = "100000\n") -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("cgroups", "files", "cpus"),
    [
        (V2, {"pod/box/cpu.max": "150000 100000\n", "pod/cpu.max": "max 100000\n"}, 1.5),
        (V2, {"pod/box/cpu.max": "400000 100000\n", "pod/cpu.max": "50000 100000\n"}, 0.5),  # of an ancestor
        (V2, {"cpu.max": "200000 100000\n"}, 2.0),  # the path is the host's, and only the subtree is mounted
        (V2, {"pod/box/cgroup.procs": "", "other/cpu.max": "1000 100000", "pod/box/sub/cpu.max": "1 100000"}, None),
        (V1, make_v1_quota("cpu,cpuacct/pod/box", "250000\n") | make_v1_quota("cpu,cpuacct", "-1\n"), 2.5),
        (V1, make_v1_quota("cpu/pod/box", "800000") | make_v1_quota("cpu/pod", "100000", "50000"), 2.0),
        (HYBRID, {"unified/pod/box/cpu.max": "max 100000\n"} | make_v1_quota("cpu,cpuacct/pod/box", "300000"), 3.0),
        *((V2, {"pod/box/cpu.max": text}, None) for text in ("", "max", "100000", "a b", "-1 100000", "1 0")),
    ],
)
def test_the_smallest_quota_of_our_cgroup_and_its_ancestors_counts(
    tmp_path: Path, cgroups: str, files: dict[str, str], cpus: float | None
) -> None:
    assert read_cpu_quota(*write_machine(tmp_path, cgroups, files)) == cpus


def make_v2_limit(folder: str, limit: object, use: int = 0, stat: str = "") -> dict[str, str]:
    texts = {"max": limit, "current": use, "stat": stat}
    return {f"{folder}/memory.{name}": str(text) for name, text in texts.items()}


def make_v1_limit(folder: str, limit: object, use: int = 0, stat: str = "") -> dict[str, str]:
    texts = {"limit_in_bytes": limit, "usage_in_bytes": use, "stat": stat}
    return {f"memory/{folder}/memory.{name}": str(text) for name, text in texts.items()}


V2_STAT = f"anon 1\nactive_file {GIB}\ninactive_file {512 * MIB}\n"
V1_STAT = f"inactive_file {MIB}\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}\n"
BOX = "pod/box"


@pytest.mark.parametrize(
    ("cgroups", "files", "limit", "available"),
    [
        (V2, make_v2_limit(BOX, 8 * GIB, 0) | make_v2_limit("pod", 3 * GIB, 2 * GIB), 3 * GIB, GIB),
        (V2, make_v2_limit(BOX, 4 * GIB, GIB) | make_v2_limit("pod", 8 * GIB, 7 * GIB), 4 * GIB, GIB),
        (V2, make_v2_limit(".", 4 * GIB, GIB), 4 * GIB, 3 * GIB),  # only the subtree of the host is mounted
        (V2, make_v2_limit(BOX, 64 * GIB), 16 * GIB, 10 * GIB),  # above physical memory
        (V2, make_v2_limit("other", 4096) | make_v2_limit("pod/box/sub", 1), 16 * GIB, 10 * GIB),
        (V2, make_v2_limit(BOX, 4 * GIB, 3 * GIB, V2_STAT), 4 * GIB, 2 * GIB + 512 * MIB),  # its cache is in use
        (V2, make_v2_limit(BOX, 4 * GIB, GIB) | {f"{BOX}/memory.high": str(2 * GIB)}, 2 * GIB, GIB),
        (V2, make_v2_limit(BOX, GIB, 2 * GIB), GIB, 0),
        (V1, make_v1_limit(BOX, 4 * GIB, 2 * GIB, V1_STAT), 4 * GIB, 3 * GIB),
        (HYBRID, make_v2_limit("unified/pod/box", GIB) | make_v1_limit(BOX, 3 * GIB), GIB, GIB),
        (HYBRID, make_v2_limit("unified/pod/box", "max", GIB) | make_v1_limit(BOX, UNLIMITED_V1), 16 * GIB, 10 * GIB),
    ],
)
def test_the_smallest_limit_counts_and_the_least_that_is_left_under_one_is_available(
    tmp_path: Path, cgroups: str, files: dict[str, str], limit: int, available: int
) -> None:
    folders = write_machine(tmp_path, cgroups, files)
    assert read_memory_limit(*folders) == limit
    assert AvailableMemory(*folders).read() == available


@pytest.mark.parametrize("text", ["", "nonsense", "0:\n\n::\n", "0::/../../elsewhere\n", "\x00\xff"])
def test_a_garbled_list_of_cgroups_is_no_limit(tmp_path: Path, text: str) -> None:
    folders = write_machine(tmp_path, text, {"job/cpu.max": "1 100000", "job/memory.max": "1"})
    assert read_cpu_quota(*folders) is None
    assert read_memory_limit(*folders) == 16 * GIB


@pytest.mark.parametrize(
    ("cgroups", "folder", "name"), [(V2, "pod", "memory.events"), (HYBRID, "memory/pod", "memory.oom_control")]
)
def test_oom_kills_of_our_own_cgroup_are_counted(tmp_path: Path, cgroups: str, folder: str, name: str) -> None:
    files = {f"{folder}/box/{name}": "under_oom 0\noom_kill 2\n", f"{folder}/{name}": "oom_kill 9"}
    folders = find_own_memory_groups(*write_machine(tmp_path, cgroups, files))
    assert sum(map(count_oom_kills, folders)) == 2


# Counters of CPU time

TICKS = os.sysconf("SC_CLK_TCK")
STAT = "cpu  100 10 50 700 40 5 15 80 60 6\ncpu0 50 5 25 350 20 2 8 40 30 3\nintr 1 2 3\n"


def test_idle_waiting_and_stolen_time_are_not_busy_and_guests_are_counted_once(tmp_path: Path) -> None:
    proc, cgroup = write_machine(tmp_path, V2, {})
    write_files(proc, {"stat": STAT})
    counters = read_cpu_counters(proc, cgroup)
    assert counters.busy_seconds == pytest.approx((100 + 10 + 50 + 5 + 15) / TICKS)
    assert counters.total_seconds == pytest.approx((100 + 10 + 50 + 700 + 40 + 5 + 15 + 80) / TICKS)
    assert counters.steal_seconds == pytest.approx(80 / TICKS)


def make_use(folder: str, periods: int, throttled: int) -> dict[str, str]:
    return {f"{folder}/cpu.stat": f"usage_usec 12345\nnr_periods {periods}\nnr_throttled {throttled}\n"}


V2_USE = make_use("pod/box", 200, 20) | make_use("pod", 1000, 5) | make_use("other", 9, 9)
V1_USE = make_use("cpu,cpuacct/pod/box", 40, 4)


@pytest.mark.parametrize(
    ("cgroups", "files", "uses"),
    [
        (V2, V2_USE, [CpuThrottling(200, 20), CpuThrottling(1000, 5)]),
        (V1, V1_USE, [CpuThrottling(40, 4)]),
        (V2, {"pod/box/cpu.stat": "usage_usec 12345\nuser_usec 1\n"}, []),  # no quota
        *((V2, {"pod/box/cpu.stat": f"nr_periods{text}\nnr_throttled 1"}, []) for text in ("", " x", " ²", "\x00 1")),
    ],
)
def test_the_use_of_quotas_is_read_for_our_cgroup_and_its_ancestors(
    tmp_path: Path, cgroups: str, files: dict[str, str], uses: list[CpuThrottling]
) -> None:
    assert list(read_cpu_throttling(*write_machine(tmp_path, cgroups, files))) == uses


def test_background_load_is_counted_in_cpus_beyond_those_that_we_may_not_use() -> None:
    assert background_cpus(make_counters(busy=10.0), make_counters(busy=10.75), 0.5, 2.0) == pytest.approx(1.5)
    readings = make_counters(busy=10.0, total=100.0), make_counters(busy=13.0, total=108.0)
    assert background_cpus(*readings, 1.0, 5.0) == 0
    assert background_cpus(*readings, 1.0, 6.0) == pytest.approx(1.0)
    assert background_cpus(make_counters(busy=10.0), make_counters(busy=9.9), 0.2, 2.0) == 0


def test_stolen_time_and_the_quota_throttled_most_are_shares_of_the_time_in_between() -> None:
    before = make_counters(total=1000.0, steal=500.0, quotas=[(100, 0), (9000, 4000)])
    after = make_counters(total=1100.0, steal=505.0, quotas=[(200, 50), (9100, 4010)])
    assert (steal_share(before, after), throttled_share(before, after)) == pytest.approx((0.05, 0.5))
    assert throttled_share(make_counters(), make_counters()) == 0


COUNTERS = st.builds(
    make_counters,
    busy=st.floats(0, 1e9),
    total=st.floats(0, 1e9),
    steal=st.floats(0, 1e9),
    quotas=st.lists(st.tuples(st.integers(0, 2**64), st.integers(0, 2**64)), max_size=3),
)


@given(before=COUNTERS, after=COUNTERS)
def test_shares_stay_between_0_and_1_even_if_counters_go_back(before: CpuCounters, after: CpuCounters) -> None:
    assert 0 <= steal_share(before, after) <= 1
    assert 0 <= throttled_share(before, after) <= 1
