"""Counts how many samples raise, once one has: a damaged file here and there is not a dataset that does not work."""

from __future__ import annotations

import time
from typing import Final

import torch

from autotune.child.workload_loading import LoadedWorkload

MAX_SAMPLES: Final = 2000
MAX_SECONDS: Final = 2.0
MAX_FIRST_FAILURES: Final = 20  # in a row, from the first on; then it is the dataset, and no sample


def describe_failure_rate(workload: LoadedWorkload) -> str | None:
    """Say how many samples raise, asked one by one at random; None where all or none do, or where they cannot be."""
    dataset, parts = workload.parts.dataset, workload.parts
    if workload.kind != "map" or parts.sampler is not None or parts.batch_sampler is not None:
        return None
    length = len(dataset)  # type: ignore[arg-type]  # a map dataset without a sampler was refused if it has none
    deadline = time.perf_counter() + MAX_SECONDS
    tried, failed = 0, []
    order = torch.randperm(length, generator=torch.Generator().manual_seed(0))  # of its own: the user's stays as it was
    for index in order[:MAX_SAMPLES].tolist():
        tried += 1
        try:
            dataset[index]
        except Exception:  # whatever the user's code raises: it is counted
            failed.append(index)
        if len(failed) == tried >= MAX_FIRST_FAILURES or time.perf_counter() > deadline:
            break
    if not 0 < len(failed) < tried:
        return None
    verb = "raises" if len(failed) == 1 else "raise"
    return (
        f"About {len(failed)} of {tried:,} samples {verb} (one is sample {failed[0]}), without workers: a training run "
        "would meet them as well. Mend them, or have the dataset replace such samples."
    )
