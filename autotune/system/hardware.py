"""The machine and the versions that a profile is for."""

from __future__ import annotations

from pydantic import Field

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedCpus,
    Fraction,
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
        driver: Its version, from NVML.
        pcie: Its link, as in `gen5 x16`, from NVML.
        other_processes: Processes of others that compute on it, from NVML.
        others_busy: Share of the moment before the probe in which they kept it computing, from NVML.
    """

    name: str
    count: BoundedCount = 1
    memory_bytes: BoundedBytes = 0
    compute_capability: str | None = None
    uuid: str | None = None
    driver: str | None = None
    pcie: str | None = None
    other_processes: BoundedCount = 0
    others_busy: Fraction = 0.0


class Hardware(FrozenModel):
    """The machine a profile was measured on, as far as it decides about the loader.

    Attributes:
        gpu: Name of the accelerator; None on a machine without one.
        gpu_count: Accelerators of that name.
        gpu_memory_bytes: Memory of one.
        usable_cpus: The smaller of affinity and every cgroup quota, in CPUs.
    """

    gpu: str | None
    gpu_count: BoundedCount
    gpu_memory_bytes: BoundedBytes = 0
    compute_capability: str | None = None
    pcie: str | None = None
    cpu: str | None
    usable_cpus: BoundedCpus
    memory_limit_bytes: BoundedBytes
    shm_limit_bytes: BoundedBytes
    nofile_limit: BoundedCount


class Software(FrozenModel):
    """Versions, the start method, and variables that limit threads, under which a profile was measured."""

    dltune: str
    torch: str
    cuda: str | None
    driver: str | None = None
    python: str
    start_method: StartMethod
    thread_variables: dict[str, str] = Field(default_factory=dict)  # as set in the environment
