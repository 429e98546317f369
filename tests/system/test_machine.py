from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.system.machine import (
    Accelerator,
    count_whole_cpus,
    describe_local_hardware,
    read_gpus,
    read_machine,
    read_memory_limit,
    read_shm,
)
from tests.builders import make_hardware, make_machine, write_files

GPUS = {
    "driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-bbbb-2\n",
    "driver/nvidia/gpus/0000:05:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aaaa-1\n",
}


def test_without_any_file_there_is_no_quota_and_physical_memory_is_the_limit(tmp_path: Path) -> None:
    machine = read_machine(tmp_path / "proc", tmp_path / "cgroup", tmp_path / "shm")
    assert (machine.cpu, machine.quota_cpus) == (None, None)
    assert machine.memory_limit_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (machine.shm_limit_bytes, machine.shm_free_bytes, machine.shm_writable) == (0, 0, False)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce GTX 1080 Ti", "1080ti"),
        ("NVIDIA GeForce RTX 3080 Ti", "3080ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "4070tisuper"),
        ("NVIDIA RTX 6000 Ada Generation", "6000ada"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "3080"),
        ("AMD Radeon RX 7900 XTX", "7900xtx"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "4000sffada"),
        ("gfx90a", "gfx90a"),
        ("NVIDIA TITAN V", "v"),
    ],
)
def test_the_class_of_a_machine_names_its_gpus_by_their_model(gpu: str, name: str) -> None:
    assert make_hardware(gpu=gpu, gpu_count=2).machine_class.startswith(f"{name}x2-")


def test_the_processor_is_named_by_its_first_model_name(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Xeon: Gold\nmodel name\t: Other\n"
    assert read_machine(write_files(tmp_path, {"cpuinfo": cpuinfo}), tmp_path, tmp_path).cpu == "Xeon: Gold"


def test_the_smaller_of_affinity_and_quota_is_usable_and_a_part_of_a_cpu_counts_as_one() -> None:
    assert [make_machine(affinity_cpus=cpus, quota_cpus=2.5).usable_cpus for cpus in (8, 2)] == [2.5, 2.0]
    assert [count_whole_cpus(usable) for usable in (0.25, 1.0, 1.5, 4.0)] == [1, 1, 2, 4]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("NVIDIA H100", "NVIDIA A100")),  # in the order of their slots
        ("0,1", ("NVIDIA H100", "NVIDIA A100")),
        ("1", ("NVIDIA A100",)),
        ("GPU-bbbb", ("NVIDIA A100",)),
        ("1,7,0", ("NVIDIA A100",)),
        ("", ()),
        ("-1", ()),
        ("MIG-cccc", ("NVIDIA H100 MIG",)),
    ],
)
def test_gpus_are_listed_as_cuda_would_see_them(visible: str | None, names: tuple[str, ...], tmp_path: Path) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert read_gpus(write_files(tmp_path / "proc", GPUS), environ) == names
    assert read_gpus(tmp_path, environ) == ()  # without the driver


def test_gpus_of_the_host_without_a_device_file_here_are_not_counted(tmp_path: Path) -> None:
    text = "Model: \t\t NVIDIA H100 80GB HBM3\nDevice Minor: \t {}\n"
    files = {f"driver/nvidia/gpus/0000:{minor}b:00.0/information": text.format(minor) for minor in range(8)}
    proc, dev = write_files(tmp_path / "proc", files), write_files(tmp_path / "dev", {"nvidia3": "", "nvidiactl": ""})
    assert read_gpus(proc, {}, dev) == ("NVIDIA H100 80GB HBM3",)
    assert read_gpus(proc, {}, tmp_path) == ()


def test_a_gpu_with_slices_is_one_slice_as_cuda_sees_a_single_one(tmp_path: Path) -> None:
    slices = {"driver/nvidia/capabilities/gpu0/mig/gi7/access": "DeviceFileMinor: 66\n"}
    gpus = {
        f"driver/nvidia/gpus/0000:0{minor}:00.0/information": f"Model: NVIDIA H100\nDevice Minor: {minor}\n"
        for minor in (0, 1)
    }
    proc, dev = (
        write_files(tmp_path / "proc", gpus | slices),
        write_files(tmp_path / "dev", {"nvidia0": "", "nvidia1": ""}),
    )
    assert read_gpus(proc, {"NVIDIA_VISIBLE_DEVICES": "MIG-1"}, dev) == ("NVIDIA H100 MIG",)
    assert read_gpus(proc, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, dev) == ("NVIDIA H100 MIG",)


@pytest.mark.parametrize(
    ("gpu", "file"),
    [
        ("NVIDIA GeForce RTX 4090", "dxg"),  # in WSL
        ("AMD Instinct MI300X", "kfd"),
        ("xpu", "dri/renderD128"),
    ],
)
def test_an_accelerator_that_only_torch_can_name_is_the_profiles_if_its_device_file_exists(
    tmp_path: Path, gpu: str, file: str
) -> None:
    machine = make_machine()
    there = machine.hardware(Accelerator(name=gpu, count=2))
    assert describe_local_hardware(machine, there, gpus=(), dev=tmp_path).gpu is None
    write_files(tmp_path, {file: ""})
    assert describe_local_hardware(machine, there, gpus=(), dev=tmp_path) == there
    assert describe_local_hardware(machine, there, gpus=("NVIDIA A100",), dev=tmp_path).gpu == "NVIDIA A100"


def test_a_slice_of_a_partitioned_gpu_matches_the_slice_that_was_tuned() -> None:
    there = make_machine().hardware(Accelerator(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", count=1))
    assert describe_local_hardware(make_machine(), there, gpus=("NVIDIA H100 80GB HBM3 MIG",)) == there


def test_a_dev_shm_without_a_limit_has_the_size_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: (0, 0, 0))
    size, free = read_shm(tmp_path)
    assert size == free == read_memory_limit()
