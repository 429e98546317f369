"""The machine and the versions that a profile is for."""

from __future__ import annotations

import re

from pydantic import Field

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedCpus,
    FrozenModel,
    StartMethod,
)


class Accelerator(FrozenModel):
    """What a process sees of the accelerator in use; what is not told is 0 or None.

    Attributes:
        name: Its model, with the slice of it where it is partitioned (MIG).
        count: Accelerators of that name that are visible.
        memory_bytes: Memory of one.
        compute_capability: CUDA's, as in `9.0`.
    """

    name: str
    count: BoundedCount = 1
    memory_bytes: BoundedBytes = 0
    compute_capability: str | None = None


class Hardware(FrozenModel):
    """The machine a profile was measured on, as far as it decides about the loader.

    Attributes:
        gpu: Name of the accelerator; None on a machine without one.
        gpu_count: Accelerators of that name.
        gpu_memory_bytes: Memory of one.
        compute_capability: CUDA's, as in `9.0`; None where not told.
        cpu: Model of the CPU; None where not told.
        usable_cpus: The smaller of affinity and every cgroup quota, in CPUs.
        memory_limit_bytes: Physical memory, or the limit of the cgroup where that is smaller.
        shm_limit_bytes: Size of `/dev/shm`.
        nofile_limit: Open files that a process may have.
    """

    gpu: str | None
    gpu_count: BoundedCount
    gpu_memory_bytes: BoundedBytes = 0
    compute_capability: str | None = None
    cpu: str | None
    usable_cpus: BoundedCpus
    memory_limit_bytes: BoundedBytes
    shm_limit_bytes: BoundedBytes
    nofile_limit: BoundedCount

    @property
    def machine_class(self) -> str:
        """Accelerators, CPUs and memory, such as `h100x1-12c-64g`: machines of one class share profiles."""
        gib = self.memory_limit_bytes / 2**30
        memory = f"{gib:.0f}g" if gib >= 1 else f"{gib * 1024:.0f}m"
        return f"{self._describe_gpus()}-{self.usable_cpus:g}c-{memory}"

    def _describe_gpus(self) -> str:
        if self.gpu is None:
            return "cpu"
        model = re.search(r"[A-Z]+\d\w*", self.gpu)
        return f"{(model[0] if model else self.gpu.split()[-1]).lower()}x{self.gpu_count}"


class Software(FrozenModel):
    """Versions, the start method, and variables that limit threads, under which a profile was measured.

    Attributes:
        dltune: Version of dltune.
        torch: Version of torch.
        cuda: Version of CUDA that torch was built with; None for a CPU build.
        python: Version of Python.
        start_method: How workers start where nothing else is said.
        thread_variables: Variables that limit threads of libraries, as set in the environment.
    """

    dltune: str
    torch: str
    cuda: str | None
    python: str
    start_method: StartMethod
    thread_variables: dict[str, str] = Field(default_factory=dict)
