"""Hardware and software of a profile, and the GPUs of this machine, listed without starting torch or CUDA."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import Field

from autotune.config import BoundedBytes, BoundedCount, BoundedCpus, FrozenModel, StartMethod
from autotune.system.processes import DEV, PROC, read_field

VISIBLE_DEVICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Accelerator(FrozenModel):
    """The accelerator of a process; unknown values are 0 or None.

    Attributes:
        name: Its model, including the slice if it is partitioned (MIG).
        count: Visible accelerators of that name.
        memory_bytes: Memory of one.
    """

    name: str
    count: BoundedCount = 1
    memory_bytes: BoundedBytes = 0


class Hardware(FrozenModel):
    """The hardware that a profile was measured on.

    Attributes:
        gpu: Name of the accelerator; None on a machine without one.
        gpu_count: Accelerators of that name.
        gpu_memory_bytes: Memory of one.
        cpu: Model of the CPU; None if unknown.
        usable_cpus: The smaller of affinity and every cgroup quota, in CPUs.
        memory_limit_bytes: The smaller of physical memory and every cgroup limit.
        shm_limit_bytes: Size of `/dev/shm`.
        nofile_limit: Limit of open files per process.
    """

    gpu: str | None
    gpu_count: BoundedCount
    gpu_memory_bytes: BoundedBytes = 0
    cpu: str | None
    usable_cpus: BoundedCpus
    memory_limit_bytes: BoundedBytes
    shm_limit_bytes: BoundedBytes
    nofile_limit: BoundedCount

    @property
    def machine_class(self) -> str:
        """Accelerators, CPUs and memory, such as `h100x1-12c-64g`; machines of one class share profiles."""
        gib = self.memory_limit_bytes / 2**30
        memory = f"{gib:.0f}g" if gib >= 1 else f"{gib * 1024:.0f}m"
        gpus = "cpu"
        if self.gpu is not None:
            model = re.search(r"[A-Z]+\d\w*", self.gpu)
            gpus = f"{(model[0] if model else self.gpu.split()[-1]).lower()}x{self.gpu_count}"
        return f"{gpus}-{self.usable_cpus:g}c-{memory}"


class Software(FrozenModel):
    """The software that a profile was measured with.

    Attributes:
        dltune: Version of dltune.
        torch: Version of torch.
        cuda: Version of CUDA that torch was built with; None for a CPU build.
        python: Version of Python.
        start_method: Default start method of workers.
        thread_variables: Environment variables that limit the threads of libraries.
    """

    dltune: str
    torch: str
    cuda: str | None
    python: str
    start_method: StartMethod
    thread_variables: dict[str, str] = Field(default_factory=dict)


def read_gpus(proc: Path = PROC, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """List the NVIDIA GPUs that a training process here would see, by the names of `torch.cuda.get_device_name`.

    The name of a slice (MIG) ends in `MIG`, because the driver does not list slices.
    """
    files = sorted(proc.glob("driver/nvidia/gpus/*/information"))
    gpus = [(read_field(file, "Model") or "unknown GPU", read_field(file, "GPU UUID") or "") for file in files]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(model for model, _ in gpus)
    names = []
    for entry in map(str.strip, visible.split(",")):  # numbers, or beginnings of UUIDs
        if entry.isdecimal():
            found = [model for model, _ in gpus[int(entry) :]]
        elif entry.startswith("MIG-"):
            found = [f"{model} MIG" for model, _ in gpus]
        else:
            found = [model for model, uuid in gpus if entry and uuid.startswith(entry)]
        if not found:
            break  # CUDA ignores the entries after an invalid one
        names.append(found[0])
    return tuple(names)


def may_have(gpu: str, dev: Path = DEV, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether an accelerator that `read_gpus` does not list has a device file here.

    Those of AMD and Intel, and of NVIDIA in WSL, have no name that can be read without starting them.
    """
    if any(environ.get(name, "unset").strip() in ("", "-1") for name in VISIBLE_DEVICES):
        return False
    is_amd = re.search(r"\b(AMD|Radeon|Instinct)\b", gpu) is not None
    return any(dev.glob("dri/renderD*" if gpu == "xpu" else "kfd" if is_amd else "dxg"))
