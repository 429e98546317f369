"""What the files of cgroups, of version 2, 1 or both, say about our limits."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.system.cgroups import (
    CpuCounters,
    background_cpus,
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


def write_proc(root: Path, cgroups: str, meminfo: str = MEMINFO) -> Path:
    return write_files(root, {"self/cgroup": cgroups, "meminfo": meminfo})


def read_available_memory(proc: Path, cgroup: Path) -> int:
    return AvailableMemory(proc, cgroup).read()


def test_the_v2_quota_of_our_own_cgroup_counts_in_cpus(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job/step\n")
    cgroup = write_files(tmp_path / "cgroup", {"job/step/cpu.max": "150000 100000\n", "job/cpu.max": "max 100000\n"})
    assert read_cpu_quota(proc, cgroup) == 1.5


def test_a_smaller_quota_of_an_ancestor_wins_over_our_own_in_v2(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job/step/task\n")
    cgroup = write_files(
        tmp_path / "cgroup", {"job/step/task/cpu.max": "400000 100000\n", "job/cpu.max": "50000 100000\n"}
    )
    assert read_cpu_quota(proc, cgroup) == 0.5


def test_the_v1_quota_is_found_under_the_joint_name_of_its_controllers(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "5:cpuset:/\n4:cpu,cpuacct:/docker/a1\n1:name=systemd:/x\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "cpu,cpuacct/docker/a1/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/docker/a1/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert read_cpu_quota(proc, cgroup) == 2.5


def test_a_smaller_quota_of_an_ancestor_wins_over_our_own_in_v1(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "4:cpu:/pod/box\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "cpu/pod/box/cpu.cfs_quota_us": "800000",
            "cpu/pod/box/cpu.cfs_period_us": "100000",
            "cpu/pod/cpu.cfs_quota_us": "100000",
            "cpu/pod/cpu.cfs_period_us": "50000",
        },
    )
    assert read_cpu_quota(proc, cgroup) == 2.0


def test_the_v1_quota_counts_in_a_hybrid_layout_whose_unified_tree_has_none(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "3:cpu,cpuacct:/job\n2:memory:/job\n0::/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "unified/job/cgroup.procs": "1\n",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "300000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": str(2 * GIB),
        },
    )
    assert read_cpu_quota(proc, cgroup) == 3.0
    assert read_memory_limit(proc, cgroup) == 2 * GIB


def test_the_unified_tree_of_a_hybrid_layout_is_read_too(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "2:memory:/job\n0::/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {"unified/job/memory.max": str(GIB), "memory/job/memory.limit_in_bytes": str(3 * GIB)},
    )
    assert read_memory_limit(proc, cgroup) == GIB


def test_the_limit_at_the_mount_counts_when_the_path_is_that_of_the_host(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/kubepods/pod1/box\n")
    cgroup = write_files(tmp_path / "cgroup", {"cpu.max": "200000 100000\n", "memory.max": str(4 * GIB)})
    assert read_cpu_quota(proc, cgroup) == 2.0
    assert read_memory_limit(proc, cgroup) == 4 * GIB


def test_limits_of_other_cgroups_do_not_concern_us(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {"job/cgroup.procs": "", "other/cpu.max": "1000 100000", "other/memory.max": "4096", "job/sub/memory.max": "1"},
    )
    assert read_cpu_quota(proc, cgroup) is None
    assert read_memory_limit(proc, cgroup) == 16 * GIB


def test_v2_max_and_the_v1_number_for_unlimited_are_no_limits(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "2:memory:/job\n0::/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "unified/job/memory.max": "max\n",
            "unified/job/memory.current": str(GIB),
            "unified/job/cpu.max": "max 100000\n",
            "memory/job/memory.limit_in_bytes": UNLIMITED_V1,
            "memory/job/memory.usage_in_bytes": str(GIB),
        },
    )
    assert read_memory_limit(proc, cgroup) == 16 * GIB
    assert read_available_memory(proc, cgroup) == 10 * GIB
    assert read_cpu_quota(proc, cgroup) is None


def test_a_smaller_memory_limit_of_an_ancestor_wins_over_our_own(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job/step\n")
    cgroup = write_files(tmp_path / "cgroup", {"job/step/memory.max": str(8 * GIB), "job/memory.max": str(3 * GIB)})
    assert read_memory_limit(proc, cgroup) == 3 * GIB


def test_a_limit_above_physical_memory_gives_nothing_more(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    cgroup = write_files(tmp_path / "cgroup", {"job/memory.max": str(64 * GIB)})
    assert read_memory_limit(proc, cgroup) == 16 * GIB


def test_available_memory_is_limit_less_usage_plus_the_inactive_file_cache_in_v2(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "job/memory.max": str(4 * GIB),
            "job/memory.current": str(3 * GIB),
            "job/memory.stat": f"anon 1\nactive_file {GIB}\ninactive_file {512 * MIB}\n",
        },
    )
    assert read_available_memory(proc, cgroup) == 4 * GIB - 3 * GIB + 512 * MIB


def test_available_memory_counts_the_cache_of_all_descendants_in_v1(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "7:memory:/job\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "memory/job/memory.limit_in_bytes": str(4 * GIB),
            "memory/job/memory.usage_in_bytes": str(2 * GIB),
            "memory/job/memory.stat": f"inactive_file {MIB}\ntotal_inactive_file {GIB}\n",
        },
    )
    assert read_available_memory(proc, cgroup) == 3 * GIB


def test_the_fullest_ancestor_decides_what_memory_is_available(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/pod/box\n")
    cgroup = write_files(
        tmp_path / "cgroup",
        {
            "pod/box/memory.max": str(4 * GIB),
            "pod/box/memory.current": str(GIB),
            "pod/memory.max": str(8 * GIB),
            "pod/memory.current": str(7 * GIB),
        },
    )
    assert read_available_memory(proc, cgroup) == GIB


def test_a_cgroup_over_its_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    cgroup = write_files(tmp_path / "cgroup", {"job/memory.max": str(GIB), "job/memory.current": str(2 * GIB)})
    assert read_available_memory(proc, cgroup) == 0


def test_the_machine_decides_where_it_has_less_available_than_the_cgroup(tmp_path: Path) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    cgroup = write_files(tmp_path / "cgroup", {"job/memory.max": str(12 * GIB), "job/memory.current": "0"})
    assert read_available_memory(proc, cgroup) == 10 * GIB


@pytest.mark.parametrize("text", ["", "nonsense", "0:\n\n::\n", "0::/../../elsewhere\n", "\x00\xff"])
def test_a_garbled_cgroup_list_means_no_limit_rather_than_an_error(tmp_path: Path, text: str) -> None:
    proc = write_proc(tmp_path / "proc", text)
    cgroup = write_files(tmp_path / "cgroup", {"job/cpu.max": "1 100000", "job/memory.max": "1"})
    assert read_cpu_quota(proc, cgroup) is None
    assert read_memory_limit(proc, cgroup) == 16 * GIB


@pytest.mark.parametrize("text", ["", "max", "100000", "a b", "-1 100000"])
def test_a_garbled_v2_quota_means_no_quota(tmp_path: Path, text: str) -> None:
    proc = write_proc(tmp_path / "proc", "0::/job\n")
    assert read_cpu_quota(proc, write_files(tmp_path / "cgroup", {"job/cpu.max": text})) is None


TICKS = os.sysconf("SC_CLK_TCK")
STAT = "cpu  100 10 50 700 40 5 15 80 60 6\ncpu0 50 5 25 350 20 2 8 40 30 3\nintr 1 2 3\n"


def write_root(root: Path, stat: str = STAT, cgroups: str = "0::/job\n", **groups: tuple[int, int]) -> Path:
    """Write a machine whose version 2 cgroups, named with `__` for `/`, have had so many periods and throttled ones."""
    files = {f"sys/fs/cgroup/{name.replace('__', '/')}/cpu.stat": cpu_stat(*use) for name, use in groups.items()}
    return write_files(root, {"proc/stat": stat, "proc/self/cgroup": cgroups, **files})


def cpu_stat(periods: int, throttled: int) -> str:
    return f"usage_usec 12345\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 7\n"


def read_under(root: Path) -> CpuCounters | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psutil.PROCFS_PATH", str(root / "proc"))
        return read_cpu_counters(root / "proc", root / "sys/fs/cgroup")


def need_counters(root: Path) -> CpuCounters:
    counters = read_under(root)
    assert counters is not None
    return counters


def list_throttling(root: Path) -> list[tuple[int, int]]:
    return [(use.periods, use.throttled_periods) for use in need_counters(root).throttling]


def test_idle_waiting_and_stolen_time_are_not_busy_and_guests_are_counted_once(tmp_path: Path) -> None:
    counters = need_counters(write_root(tmp_path))
    assert counters.busy_seconds == pytest.approx((100 + 10 + 50 + 5 + 15) / TICKS)
    assert counters.total_seconds == pytest.approx((100 + 10 + 50 + 700 + 40 + 5 + 15 + 80) / TICKS)
    assert counters.steal_seconds == pytest.approx(80 / TICKS)


def test_this_machine_can_be_read() -> None:
    counters = read_cpu_counters()
    assert counters is None or 0 <= counters.busy_seconds <= counters.total_seconds


def test_without_any_file_the_counters_are_unknown(tmp_path: Path) -> None:
    assert read_under(tmp_path) is None


@pytest.mark.parametrize("stat", ["", "\n", "cpu\n", "cpu 1 2 3\n", "cpu 1 2 3 4\n", "cpu 1 2 3 x\n", "cpu 1 2 3 ²\n"])
def test_a_garbled_list_of_times_is_unknown_rather_than_an_error(tmp_path: Path, stat: str) -> None:
    assert read_under(write_root(tmp_path, stat=stat)) is None


@given(
    start=st.integers(0, len(STAT)),
    length=st.integers(0, 20),
    text=st.text(max_size=30) | st.text("0123456789 \ncpu", max_size=60),
)
def test_no_mutation_of_the_list_of_times_raises(start: int, length: int, text: str) -> None:
    stat = (STAT[:start] + text + STAT[start + length :]).encode(errors="replace")
    with TemporaryDirectory() as folder:
        root = write_root(Path(folder))
        (root / "proc" / "stat").write_bytes(stat)
        read_under(root)


@given(text=st.text(max_size=60) | st.text("0123456789 \nnr_periodsthled", max_size=60))
def test_no_mutation_of_the_use_of_a_quota_raises(text: str) -> None:
    with TemporaryDirectory() as folder:
        root = write_root(Path(folder), job=(1, 1))
        path = root / "sys/fs/cgroup/job/cpu.stat"
        path.write_bytes((path.read_text()[: len(text)] + text).encode(errors="replace"))
        need_counters(root)


def test_the_use_of_quotas_is_read_for_our_own_cgroup_and_its_ancestors_only(tmp_path: Path) -> None:
    root = write_root(
        tmp_path, cgroups="0::/pod/box\n", pod__box=(200, 20), pod=(1000, 5), other=(9, 9), pod__sibling=(8, 8)
    )
    assert list_throttling(root) == [(200, 20), (1000, 5)]


def test_the_use_of_quotas_is_read_in_version_1(tmp_path: Path) -> None:
    root = write_root(tmp_path, cgroups="4:cpu,cpuacct:/docker/a1\n1:name=systemd:/x\n")
    write_files(root, {"sys/fs/cgroup/cpu,cpuacct/docker/a1/cpu.stat": "nr_periods 40\nnr_throttled 4\n"})
    assert list_throttling(root) == [(40, 4)]


@pytest.mark.parametrize("line", ["throttled_usec 2500000", "throttled_time 2500000000"])
def test_the_time_throttled_is_read_in_the_unit_of_its_version(tmp_path: Path, line: str) -> None:
    root = write_root(tmp_path)
    write_files(root, {"sys/fs/cgroup/job/cpu.stat": f"nr_periods 200\nnr_throttled 20\n{line}\n"})
    (use,) = read_cpu_throttling(root / "proc", root / "sys/fs/cgroup")
    assert use.throttled_share == 0.1
    assert use.throttled_seconds == pytest.approx(2.5)


def test_a_cgroup_that_counts_no_periods_has_no_quota(tmp_path: Path) -> None:
    root = write_files(write_root(tmp_path), {"sys/fs/cgroup/job/cpu.stat": "usage_usec 12345\nuser_usec 1\n"})
    assert need_counters(root).throttling == ()


def test_others_are_counted_in_cpus_over_the_time_slept() -> None:
    assert background_cpus(make_counters(busy=10.0), make_counters(busy=10.75), 0.5, 2.0) == pytest.approx(1.5)


def test_others_are_welcome_to_cpus_that_we_may_not_use() -> None:
    readings = make_counters(busy=10.0, total=100.0), make_counters(busy=13.0, total=108.0)
    assert background_cpus(*readings, 1.0, 5.0) == 0
    assert background_cpus(*readings, 1.0, 6.0) == pytest.approx(1.0)


def test_counters_that_went_back_mean_that_nobody_was_busy() -> None:
    assert background_cpus(make_counters(busy=10.0), make_counters(busy=9.9), 0.2, 2.0) == 0


def test_stolen_time_is_a_share_of_the_cpu_time_in_between() -> None:
    before, after = make_counters(total=1000.0, steal=500.0), make_counters(total=1100.0, steal=505.0)
    assert steal_share(before, after) == pytest.approx(0.05)


def test_the_quota_throttled_most_in_between_counts_whatever_happened_earlier() -> None:
    before = make_counters(quotas=[(100, 0), (9000, 4000)])
    after = make_counters(quotas=[(200, 50), (9100, 4010)])
    assert throttled_share(before, after) == pytest.approx(0.5)


def test_without_a_quota_nothing_is_throttled() -> None:
    assert throttled_share(make_counters(), make_counters()) == 0
    assert throttled_share(make_counters(quotas=[(0, 0)]), make_counters(quotas=[(0, 0)])) == 0


COUNTERS = st.builds(
    make_counters,
    busy=st.floats(0, 1e9),
    total=st.floats(0, 1e9),
    steal=st.floats(0, 1e9),
    quotas=st.lists(st.tuples(st.integers(0, 2**64), st.integers(0, 2**64)), max_size=3),
)


@given(before=COUNTERS, after=COUNTERS)
def test_shares_stay_between_0_and_1_even_where_counters_go_back(before: CpuCounters, after: CpuCounters) -> None:
    assert 0 <= steal_share(before, after) <= 1
    assert 0 <= throttled_share(before, after) <= 1
