from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.system.gpus import GpuState, read_gpu_state, read_gpus
from tests.builders import write_files


class NVMLError(Exception):
    pass


class FakeNvml:
    """As much of pynvml as is used; what is in `refused` raises as on a GPU that does not tell."""

    NVMLError = NVMLError

    def __init__(self, *refused: str, processes: int = 1) -> None:
        self._refused = refused
        self._processes = processes
        self.asked_for: str | None = None
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802  # their name
        self._check("nvmlInit")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        self.asked_for = uuid
        return self._answer("nvmlDeviceGetHandleByUUID", "handle")

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlSystemGetDriverVersion": b"570.1",
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1)] * self._processes,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37),
        }
        return lambda *arguments: self._answer(name, answers[name])

    def _answer(self, name: str, answer: Any) -> Any:
        self._check(name)
        return answer

    def _check(self, name: str) -> None:
        if name in self._refused:
            raise NVMLError(name)


def test_a_gpu_is_described_by_what_nvml_tells() -> None:
    nvml = FakeNvml(processes=2)
    assert read_gpu_state("1234", nvml) == GpuState(driver="570.1", pcie="gen5 x16", processes=2, utilization=0.37)
    assert nvml.asked_for == "GPU-1234"
    assert not nvml.is_open


def test_a_slice_is_asked_for_by_its_own_name() -> None:
    nvml = FakeNvml()
    read_gpu_state("MIG-5678", nvml)
    assert nvml.asked_for == "MIG-5678"


def test_what_a_slice_does_not_tell_stays_open() -> None:
    state = read_gpu_state("MIG-1", FakeNvml("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMaxPcieLinkWidth"))
    assert state is not None
    assert (state.utilization, state.pcie, state.driver) == (None, None, "570.1")


def test_a_machine_without_a_driver_tells_nothing() -> None:
    assert read_gpu_state("1234", FakeNvml("nvmlInit")) is None
    assert read_gpu_state("1234", FakeNvml("nvmlDeviceGetHandleByUUID")) is None


TWO_GPUS = {
    "driver/nvidia/gpus/0000:05:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aaaa-1\n",
    "driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-bbbb-2\n",
}


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
