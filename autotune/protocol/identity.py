"""Which workload is it that a process of the child has loaded?"""

from __future__ import annotations

from autotune.profiles.schema import WorkloadIdentity
from autotune.protocol.messages import IdentityReport
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest


def identify(asked: WorkloadRequest, found: WorkloadProfile | IdentityReport) -> WorkloadIdentity:
    """Join what the user named with what was found."""
    return WorkloadIdentity(
        dataset=asked.dataset,
        dataset_args=asked.dataset_args,
        split=asked.split,
        samples=found.samples,
        sample_bytes=found.sample_bytes,
        step=asked.describe_step(),
        kind=found.kind,
        loader_class=found.loader_class,
        loader_decides=found.loader_decides,
        nproc_per_node=asked.nproc_per_node,
    )
