"""What a trial's timed loop begins with; how it goes on is tested through real children in test_trial_runner."""

from __future__ import annotations

import gc

import torch
from torch.utils.data import Dataset

from autotune.loaders import LoadedWorkload
from autotune.measure import TrialMeasurement
from autotune.messages import TrialRequest
from autotune.workload import Workload
from tests.builders import make_config


class GarbageWitness(Dataset[torch.Tensor]):
    """Notes how many collections of the middle generation stand between a sample and a full collection."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen.append(gc.get_count()[2])
        return torch.zeros(1)


def bring_full_collection_near() -> None:
    gc.collect()
    for _ in range(8):
        gc.collect(1)


def test_a_trial_begins_with_no_full_garbage_collection_due() -> None:
    witness = GarbageWitness()
    request = TrialRequest(config=make_config(0, batch_size=4), epochs=1, seconds=0.2, precision=0.1)
    bring_full_collection_near()

    TrialMeasurement(
        LoadedWorkload(Workload(dataset=witness)),
        lambda batch: None,
        torch.device("cpu"),
        request,
        lambda batches: None,
    ).run()

    assert witness.seen[0] == 0
