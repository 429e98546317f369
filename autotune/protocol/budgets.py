"""Budgets of a trial on this host: memory, /dev/shm, open files, device memory and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from autotune.errors import UsageError
from autotune.profiles.schema import MAX_SEARCHED_WORKERS, Budgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest
from autotune.system.machine import MachineProfile, count_whole_cpus
from autotune.units import format_bytes, parse_budget

RESERVED_SHARE: Final = 0.03  # of physical memory
RESERVED_AVAILABLE_SHARE: Final = 0.2  # of the available memory; the smaller of both stays free with any budget


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource with a budget."""

    name: str  # in constraints of the study
    label: str  # in sentences
    budget: Literal["memory_bytes", "shm_bytes", "nofile", "gpu_bytes"]  # field of Budgets
    demand: Literal["memory_bytes", "shm_bytes", "files", "gpu_bytes"]  # field of ResourceDemand
    status: Literal["out_of_memory", "shm_exhausted", "too_many_files"]  # of a trial that exhausts it
    is_bytes: bool = True  # else a count

    def format(self, amount: float) -> str:
        """Format an amount."""
        return format_bytes(amount) if self.is_bytes else f"{amount:,.0f}"

    def describe_excess(self, used: float, budget: float) -> str:
        """Describe a budget overrun; the sentence's subject is the trial."""
        return f"used {self.format(used)} of {self.label} against a budget of {self.format(budget)}"


HOST_MEMORY: Final = Resource("memory", "host memory", "memory_bytes", "memory_bytes", "out_of_memory")
SHARED_MEMORY: Final = Resource("shm", "/dev/shm", "shm_bytes", "shm_bytes", "shm_exhausted")
OPEN_FILES: Final = Resource("files", "open files", "nofile", "files", "too_many_files", is_bytes=False)
DEVICE_MEMORY: Final = Resource("gpu", "device memory", "gpu_bytes", "gpu_bytes", "out_of_memory")
RESOURCES: Final = (HOST_MEMORY, SHARED_MEMORY, OPEN_FILES, DEVICE_MEMORY)


def plan_budgets(machine: MachineProfile, request: TuningRequest, workload: WorkloadProfile | None = None) -> Budgets:
    """Convert the budgets for the host to bytes for each training process; device memory if `workload` is known."""
    share, available = request.workload.nproc_per_node, machine.memory_available_bytes
    max_workers = max(MAX_SEARCHED_WORKERS, 2 * count_whole_cpus(machine.usable_cpus))
    return Budgets(
        memory_bytes=_parse("--max-memory", request.max_memory, available) // share,
        reserve_bytes=int(min(RESERVED_SHARE * machine.memory_limit_bytes, available * RESERVED_AVAILABLE_SHARE)),
        shm_bytes=_parse("--max-shm", request.max_shm, machine.shm_free_bytes) // share if machine.shm_writable else 0,
        nofile=machine.nofile_limit,
        gpu_bytes=_plan_gpu_bytes(request, workload),
        max_workers=max_workers if request.max_workers is None else request.max_workers,
    )


def _plan_gpu_bytes(request: TuningRequest, workload: WorkloadProfile | None) -> int | None:
    """Return one training process's share of the budget, without device memory that other processes hold."""
    whole = 0 if workload is None or workload.accelerator is None else workload.accelerator.memory_bytes
    budget = _parse("--max-gpu-memory", request.max_gpu_memory, whole)
    if workload is None or workload.accelerator is None or not whole:
        return None
    free = min(budget, workload.gpu_free_bytes) if workload.gpu_free_bytes else budget
    devices = 1 if ":" in request.workload.device else max(1, workload.accelerator.count)
    return free // -(-request.workload.nproc_per_node // devices)


def _parse(option: str, text: str, whole: int) -> int:
    try:
        return min(parse_budget(text, whole), whole)
    except ValueError as error:
        raise UsageError(f"{option}: {error}. Give a share such as 80% or an amount such as 24GiB.") from None
