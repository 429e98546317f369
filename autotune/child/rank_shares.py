"""Gives each rank its share of a dataset whose factory leaves the sharing to the training code."""

from __future__ import annotations

import dataclasses

from torch.utils.data.distributed import DistributedSampler

from autotune.child.workload_loading import LoadedWorkload


def take_share(loaded: LoadedWorkload) -> LoadedWorkload:
    """Have this rank's share of a plain dataset loaded, as training code that makes the loader does.

    A ready loader, a sampler and an iterable dataset see to it by themselves, or train on all of the data.
    """
    parts = loaded.parts
    is_ready = loaded.baseline is not None or loaded.own is not None
    if is_ready or loaded.kind != "map" or parts.sampler is not None or parts.batch_sampler is not None:
        return loaded
    sampler: DistributedSampler[int] = DistributedSampler(parts.dataset, shuffle=parts.shuffle is not False)
    return dataclasses.replace(loaded, parts=dataclasses.replace(parts, sampler=sampler))
