"""Hundreds of random changes of the workers: no batch is lost, repeated or in another position."""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import pytest
import torch

from autotune.online.epoch import Epoch
from autotune.online.group import WorkerSettings
from tests.online.test_epoch import Squares, indices_of, iterate, make_epoch, make_loader, seeded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
CHANGES = int(os.environ.get("DLTUNE_TEST_CHANGES", "500"))  # 1000 take a minute on two cores


@pytest.fixture(autouse=True)
def short_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.online.epoch.MAX_LEAD", 3)  # of short epochs, in which workers change often


def run_two_epochs(own: int, seed: int, *, shares: bool, changes: random.Random | None) -> tuple[list[list[int]], int]:
    """Return the indices of two epochs and the number of changes; with `changes`, workers change at random batches."""
    torch.manual_seed(seed)
    generator, found, made = seeded(seed), list[list[int]](), 0
    dataset = Squares(slow=changes is not None, generator=generator if shares else None)
    loader = make_loader(own, dataset=dataset, generator=generator)

    def change(epoch: Epoch) -> None:
        nonlocal made
        assert changes is not None
        settings = WorkerSettings(changes.randint(min(own, 1), 5), changes.randint(1, 4))
        made += changes.random() < 0.6 and epoch.change(settings) and epoch.settings == settings

    for _ in range(2):
        batches: Any = loader
        if changes is not None:
            epoch = make_epoch(loader, WorkerSettings(max(1, own), 2))
            batches = iterate(epoch, change)
        found.append([index for batch in indices_of(list(batches)) for index in batch])
        if changes is not None and (own or not shares):  # else a generator is seen
            assert epoch.failure == ""
    return found, made


def test_random_changes_neither_lose_nor_move_a_batch() -> None:
    made = 0
    for seed in itertools.count():
        own, shares = seed % 4, bool(seed % 3)  # whether augmentations draw from the generator of the sampler
        expected, _ = run_two_epochs(own, seed, shares=shares, changes=None)
        found, new = run_two_epochs(own, seed, shares=shares, changes=random.Random(seed))
        if own or not shares:
            assert found == expected
        assert list(map(sorted, found)) == list(map(sorted, expected))
        made += new
        if made >= CHANGES:
            break
