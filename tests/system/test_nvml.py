from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from autotune.system.nvml import GpuState, read_gpu_state


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
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlSystemGetDriverVersion": "570.1",
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
    assert read_gpu_state("1234", nvml) == GpuState(
        name="NVIDIA H100 80GB HBM3", driver="570.1", pcie="gen5 x16", processes=2, utilization=0.37
    )
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
