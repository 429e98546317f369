"""Gives each rank its share of a dataset whose factory leaves the sharing to the training code."""

from __future__ import annotations

import dataclasses

from torch.utils.data import SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from autotune.child.workload_loading import LoadedWorkload


def take_share(loaded: LoadedWorkload) -> LoadedWorkload:
    """Have this rank's share of a plain dataset loaded, as training code that makes the loader does.

    Lightning does the same with a plain loader of a data module. Another ready loader, a sampler and an iterable
    dataset see to it by themselves, or train on all of the data.
    """
    parts = loaded.parts
    if loaded.kind != "map" or loaded.own is not None or parts.batch_sampler is not None:
        return loaded
    if isinstance(parts.sampler, DistributedSampler):
        return loaded
    if loaded.owner is None and (loaded.baseline is not None or parts.sampler is not None):
        return loaded
    shuffles = parts.shuffle is not False and not isinstance(parts.sampler, SequentialSampler)
    sampler: DistributedSampler[int] = DistributedSampler(parts.dataset, shuffle=shuffles)
    return dataclasses.replace(loaded, parts=dataclasses.replace(parts, sampler=sampler, shuffle=None))
