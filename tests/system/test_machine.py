from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.system.machine import (
    count_whole_cpus,
    read_available_memory,
    read_cpu_quota,
    read_gpus,
    read_machine,
    read_memory_limit,
    read_shm,
)
from tests.builders import GIB, MIB, make_machine, write_files

MEMINFO = f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable:   {10 * GIB // 1024} kB\n"
UNLIMITED_V1 = "9223372036854771712\n"


def write_proc(root: Path, cgroups: str, meminfo: str = MEMINFO) -> Path:
    return write_files(root, {"self/cgroup": cgroups, "meminfo": meminfo})


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


def test_without_any_file_there_is_no_quota_and_physical_memory_is_the_limit(tmp_path: Path) -> None:
    machine = read_machine(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "shm")
    assert machine.cpu is None
    assert machine.quota_cpus is None
    assert machine.memory_limit_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (machine.shm_limit_bytes, machine.shm_free_bytes, machine.shm_writable) == (0, 0, False)


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


def test_the_processor_is_named_by_its_first_model_name(tmp_path: Path) -> None:
    proc = write_files(
        tmp_path / "proc", {"cpuinfo": "processor\t: 0\nmodel name\t: Xeon: Gold\nmodel name\t: Other\n"}
    )
    assert read_machine(proc, tmp_path, tmp_path).cpu == "Xeon: Gold"


def test_shared_memory_is_measured_on_its_own_file_system() -> None:
    size, free = read_shm(Path("/dev/shm"))
    assert 0 <= free <= size


def test_gpus_are_named_in_the_order_of_their_slots(tmp_path: Path) -> None:
    folder = "driver/nvidia/gpus"
    proc = write_files(
        tmp_path,
        {
            f"{folder}/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nIRQ:   1\n",
            f"{folder}/0000:05:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\n",
        },
    )
    assert read_gpus(proc) == ("NVIDIA H100 80GB HBM3", "NVIDIA A100")


def test_a_machine_without_the_driver_has_no_gpu(tmp_path: Path) -> None:
    assert read_gpus(tmp_path) == ()


def test_the_smaller_of_affinity_and_quota_is_usable_and_named_as_the_source() -> None:
    by_quota = make_machine(affinity_cpus=8, quota_cpus=2.5)
    by_affinity = make_machine(affinity_cpus=2, quota_cpus=2.5)
    assert (by_quota.usable_cpus, by_quota.cpu_source) == (2.5, "cgroup")
    assert (by_affinity.usable_cpus, by_affinity.cpu_source) == (2.0, "affinity")


@pytest.mark.parametrize(("usable", "whole"), [(0.25, 1), (1.0, 1), (1.5, 2), (4.0, 4)])
def test_a_part_of_a_cpu_counts_as_one(usable: float, whole: int) -> None:
    assert count_whole_cpus(usable) == whole


TWO_GPUS = {
    "driver/nvidia/gpus/0000:05:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aaaa-1\n",
    "driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-bbbb-2\n",
}


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0,1", ("NVIDIA H100", "NVIDIA A100")),
        ("1", ("NVIDIA A100",)),
        ("GPU-bbbb", ("NVIDIA A100",)),
        ("1,7,0", ("NVIDIA A100",)),
        ("", ()),
        ("-1", ()),
        ("MIG-cccc", ("NVIDIA H100 MIG",)),
    ],
)
def test_only_visible_gpus_count(visible: str, names: tuple[str, ...], tmp_path: Path) -> None:
    proc = write_files(tmp_path, TWO_GPUS)
    assert read_gpus(proc, {"CUDA_VISIBLE_DEVICES": visible}) == names
