"""What the training process of a trial and its workers may use of this host."""

from __future__ import annotations

from typing import Final

from autotune.config import BoundedCount, Bytes
from autotune.errors import UsageError
from autotune.profiles.schema import RecordedBudgets
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest
from autotune.system.machine import MachineProfile, count_whole_cpus
from autotune.units import parse_budget

MAX_SEARCHED_WORKERS: Final = 64
RESERVED_MEMORY_SHARE: Final = 0.03  # of physical memory that must stay free whatever the budget says


class Budgets(RecordedBudgets):
    """Budgets for everything one training process and its workers use on this host.

    Attributes:
        reserve_bytes: Host memory that must stay available to others.
    """

    reserve_bytes: Bytes
    max_workers: BoundedCount = MAX_SEARCHED_WORKERS

    def record(self) -> RecordedBudgets:
        """Give the part that is written into the profile."""
        return RecordedBudgets(**self.model_dump(exclude={"reserve_bytes"}))

    def of_all(self, processes: int) -> Budgets:
        """Give what so many training processes may use together; open files are counted in each by itself."""
        together = {"memory_bytes": self.memory_bytes * processes, "shm_bytes": self.shm_bytes * processes}
        return self.model_copy(update=together)


def plan_budgets(machine: MachineProfile, request: TuningRequest, workload: WorkloadProfile | None = None) -> Budgets:
    """Turn the user's budgets into bytes on this machine.

    Args:
        machine: What the machine allows.
        request: The user's budgets, for the whole host.
        workload: What the probe found of the accelerator; None before it.

    Returns:
        Budgets of one of the training processes that share the host.

    Raises:
        UsageError: A budget cannot be read.
    """
    share = request.workload.nproc_per_node
    max_workers = max(MAX_SEARCHED_WORKERS, 2 * count_whole_cpus(machine.usable_cpus))
    return Budgets(
        memory_bytes=_parse("--max-memory", request.max_memory, machine.memory_available_bytes) // share,
        reserve_bytes=int(machine.memory_limit_bytes * RESERVED_MEMORY_SHARE),
        shm_bytes=_parse("--max-shm", request.max_shm, machine.shm_free_bytes) // share if machine.shm_writable else 0,
        nofile=machine.nofile_limit,
        gpu_bytes=_plan_gpu_bytes(request, workload) if workload is not None else None,
        max_workers=max_workers if request.max_workers is None else request.max_workers,
    )


def _plan_gpu_bytes(request: TuningRequest, workload: WorkloadProfile) -> int | None:
    """Take the user's share of the whole device, but never what other processes hold of it.

    Training processes that outnumber the devices share them.
    """
    if workload.accelerator is None or not workload.accelerator.memory_bytes:
        return None
    budget = _parse("--max-gpu-memory", request.max_gpu_memory, workload.accelerator.memory_bytes)
    free = min(budget, workload.gpu_room_bytes) if workload.gpu_room_bytes else budget
    devices = 1 if ":" in request.workload.device else max(1, workload.accelerator.count)
    return free // -(-request.workload.nproc_per_node // devices)


def _parse(option: str, text: str, whole: int) -> int:
    try:
        return min(parse_budget(text, whole), whole)
    except ValueError as error:
        raise UsageError(f"{option}: {error}. Give a share such as 80% or an amount such as 24GiB.") from None
