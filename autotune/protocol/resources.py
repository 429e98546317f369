"""The resources that budgets are for: what each is called, by users, in a budget, in a demand and by Optuna."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from autotune.units import format_bytes


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that trials use up."""

    name: str  # in the constraints that Optuna is told; studies keep them by it
    label: str  # in sentences
    budget: Literal["memory_bytes", "shm_bytes", "nofile", "gpu_bytes"]  # field of Budgets
    demand: Literal["memory_bytes", "shm_bytes", "files", "gpu_bytes"]  # field of ResourceDemand
    outcome: Literal["out_of_memory", "shm_exhausted", "too_many_files"]  # of a trial that uses it up
    is_bytes: bool = True  # else counted

    def format(self, amount: float) -> str:
        """Write an amount of it."""
        return format_bytes(amount) if self.is_bytes else f"{amount:,.0f}"

    def describe_excess(self, used: float, budget: float) -> str:
        """Say that a trial went over a budget, as the rest of a sentence about it."""
        return f"used {self.format(used)} of {self.label} against a budget of {self.format(budget)}"


HOST_MEMORY: Final = Resource("memory", "host memory", "memory_bytes", "memory_bytes", "out_of_memory")
SHARED_MEMORY: Final = Resource("shm", "/dev/shm", "shm_bytes", "shm_bytes", "shm_exhausted")
OPEN_FILES: Final = Resource("files", "open files", "nofile", "files", "too_many_files", is_bytes=False)
DEVICE_MEMORY: Final = Resource("gpu", "device memory", "gpu_bytes", "gpu_bytes", "out_of_memory")
RESOURCES: Final = (HOST_MEMORY, SHARED_MEMORY, OPEN_FILES, DEVICE_MEMORY)
