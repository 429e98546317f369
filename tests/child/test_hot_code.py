from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from autotune.child.hot_code import find_costly_lines, find_own_line, list_loading_frames, rank_lines
from autotune.child.workload import LoadedWorkload
from autotune.request import Workload


class Decoded(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(20e-3)
        return self.flip(index)

    def flip(self, index: int) -> torch.Tensor:
        time.sleep(4e-3)
        return torch.tensor(index)


class Fails(Decoded):
    def __getitem__(self, index: int) -> Any:
        raise ValueError(index)


def load(dataset: Dataset[Any]) -> LoadedWorkload:
    return LoadedWorkload(parts=Workload(dataset=dataset))


def test_the_lines_that_take_most_of_loading_are_listed_with_their_shares() -> None:
    found = find_costly_lines(load(Decoded()))
    assert [line.source for line in found[:2]] == ["time.sleep(20e-3)", "time.sleep(4e-3)"]
    assert [line.function for line in found[:2]] == ["__getitem__", "flip"]
    assert found[0].share > 2 * found[1].share > 0.05


def test_no_thread_is_left_of_looking() -> None:
    before = threading.active_count()
    find_costly_lines(load(Decoded()))
    assert threading.active_count() == before


def test_a_dataset_that_fails_has_no_costly_lines() -> None:
    assert find_costly_lines(load(Fails())) == ()


def test_no_line_of_a_library_is_listed() -> None:
    assert find_costly_lines(load(TensorDataset(torch.zeros(1_000_000, 8)))) == ()


def test_a_stack_that_does_not_load_has_no_line() -> None:
    assert find_own_line(list_loading_frames(sys._getframe())) is None
    assert find_own_line(list_loading_frames(None)) is None


def test_few_samples_give_no_share_and_small_shares_are_left_out() -> None:
    assert rank_lines(Counter({("x.py", 1, "f"): 3}), looks=3) == ()
    counts = Counter({("x.py", 1, "f"): 47, ("x.py", 2, "f"): 3})
    assert [(line.line, line.share) for line in rank_lines(counts, looks=100)] == [(1, 0.47)]
