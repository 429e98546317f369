"""Which workload is this? The size of its samples, their number and the versions, told from a few batches."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch

from autotune.child.device import describe_accelerator
from autotune.child.probe_batches import OnPhase, load_batches, measure_sample_bytes, usual_batch_size
from autotune.system.environment import read_thread_variables
from autotune.system.hardware import Accelerator, Software
from autotune.system.versions import read_own_version, read_start_method_in_force
from autotune.trial.protocol import IdentityReport

if TYPE_CHECKING:
    from autotune.child.workload_loading import LoadedWorkload


def identify_workload(
    workload: LoadedWorkload, device: torch.device, batch_size: int, on_phase: OnPhase
) -> IdentityReport:
    """Load batches of this size as the probe does, and measure their samples as it does."""
    accelerator = describe_accelerator(device)
    batch, _, samples = load_batches(workload, usual_batch_size(workload, batch_size), on_phase)
    return IdentityReport(
        kind=workload.kind,
        samples=workload.promised_samples,
        sample_bytes=measure_sample_bytes(batch, samples),
        loader_class=None if workload.own is None else workload.own.call.name,
        loader_decides=() if workload.own is None else tuple(workload.own.fixed),
        software=read_software(accelerator),
        accelerator=accelerator,
    )


def read_software(accelerator: Accelerator | None) -> Software:
    """Read the versions that this process runs with, and how it starts its workers."""
    return Software(
        dltune=read_own_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=accelerator and accelerator.driver,
        python=platform.python_version(),
        start_method=read_start_method_in_force(),
        thread_variables=read_thread_variables(),
    )
