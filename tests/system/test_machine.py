from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.system.machine import count_whole_cpus, read_machine, read_shm
from tests.builders import make_machine, write_files


def test_without_any_file_there_is_no_quota_and_physical_memory_is_the_limit(tmp_path: Path) -> None:
    machine = read_machine(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "shm")
    assert machine.cpu is None
    assert machine.quota_cpus is None
    assert machine.memory_limit_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (machine.shm_limit_bytes, machine.shm_free_bytes, machine.shm_writable) == (0, 0, False)


def test_the_processor_is_named_by_its_first_model_name(tmp_path: Path) -> None:
    proc = write_files(
        tmp_path / "proc", {"cpuinfo": "processor\t: 0\nmodel name\t: Xeon: Gold\nmodel name\t: Other\n"}
    )
    assert read_machine(proc, tmp_path, tmp_path).cpu == "Xeon: Gold"


def test_shared_memory_is_measured_on_its_own_file_system() -> None:
    size, free = read_shm(Path("/dev/shm"))
    assert 0 <= free <= size


def test_the_smaller_of_affinity_and_quota_is_usable_and_named_as_the_source() -> None:
    by_quota = make_machine(affinity_cpus=8, quota_cpus=2.5)
    by_affinity = make_machine(affinity_cpus=2, quota_cpus=2.5)
    assert (by_quota.usable_cpus, by_quota.cpu_source) == (2.5, "cgroup")
    assert (by_affinity.usable_cpus, by_affinity.cpu_source) == (2.0, "affinity")


@pytest.mark.parametrize(("usable", "whole"), [(0.25, 1), (1.0, 1), (1.5, 2), (4.0, 4)])
def test_a_part_of_a_cpu_counts_as_one(usable: float, whole: int) -> None:
    assert count_whole_cpus(usable) == whole
