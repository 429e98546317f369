"""What the files of cgroups, of version 2, 1 or both, say about our limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.system.cgroups import (
    read_cpu_quota,
)
from autotune.system.machine import AvailableMemory, read_memory_limit
from tests.builders import GIB, MIB, write_files

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
