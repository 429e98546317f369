from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from autotune.child.probe import count_bytes
from autotune.child.sample_counts import SampleCountError, SampleCountTracker, count_samples


@dataclass
class Record:
    pixels: torch.Tensor
    name: str


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


FOUR = torch.arange(4)
NESTED: dict[str, Any] = {"a": (FOUR, [FOUR, "text"]), "b": Record(FOUR, "x"), "c": Pair(FOUR, FOUR), "d": 3}
BOXES = {"boxes": torch.zeros(56, 4), "images": torch.zeros(7, 3)}


class WithoutRank:
    """Can be made an array, as a table of Arrow."""

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return np.zeros(7)


class Split(Enum):
    TRAIN = "train"


class Node:
    """Refers to itself, as nodes of graphs do."""

    def __init__(self) -> None:
        self.values, self.neighbours = FOUR, [self]


def test_the_bytes_of_all_tensors_in_a_batch_are_counted() -> None:
    assert count_bytes(NESTED) == 5 * 4 * 8


def test_members_of_enumerations_and_objects_that_contain_themselves_are_read_once() -> None:
    assert count_bytes({"pixels": FOUR, "split": Split.TRAIN, "kind": Split, "node": Node()}) == 2 * 4 * 8


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (FOUR, 4),
        (NESTED, 4),
        (["a", "b", "c"], 3),
        ([["a", "b"], ["c", "d"]], 2),
        (object(), 7),
        ("text", 7),
        (BOXES, 7),
        ({"boxes": BOXES["boxes"]}, 56),
        ([torch.zeros(3, 2)] * 7, 7),
        ([{"image": torch.zeros(3, 2)}] * 7, 7),
        (tuple(zip(*[(torch.zeros(3, 2), {"box": torch.zeros(2, 4)})] * 7, strict=True)), 7),
        (tuple(zip(*[(torch.zeros(3, 2), {"box": torch.zeros(2, 4)})] * 5, strict=True)), 5),  # the last of an epoch
        ([{"image": torch.zeros(3, 2)}] * 5, 5),
        (({"image": torch.zeros(5, 2)}, {"text": torch.zeros(5, 9)}), 5),
        ([torch.zeros(9, 2), torch.zeros(9, 4)], 9),
        ({"image": np.zeros((7, 3)), "label": np.zeros(7)}, 7),
        ((np.zeros((5, 3)), np.zeros(5)), 5),
        (np.zeros((9, 3)), 9),
        ((np.zeros((7, 3)), np.zeros((7, 5))), 7),
        ({"a": WithoutRank(), "b": [1, 2]}, 2),
        ([np.zeros((224, 224, 3))] * 5, 5),
        ([np.zeros((6, 28, 28))] * 4, 4),
        ([np.zeros((5, 28, 28)), np.zeros(5)], 5),
        ((np.float64(1.0), np.float64(2.0)), 2),
    ],
)
def test_the_samples_of_a_batch_are_counted_by_its_tensors_arrays_or_sequences(batch: object, samples: int) -> None:
    assert count_samples(batch, 7) == samples


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_samples_of_a_nested_tensor_are_counted_though_it_has_no_shape() -> None:
    assert count_samples(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 7) == 2


def test_a_list_of_one_tensor_is_not_one_sample_if_the_batch_size_is_unknown() -> None:
    assert count_samples([torch.zeros(8, 2)], None) == 8
    assert count_samples((torch.zeros(8, 3), torch.ones(1, 3)), None) == 8
    assert [count_samples(object(), None), count_samples(object(), None, unknown=0)] == [1, 0]


def test_a_batch_of_one_sample_is_one_column_each_and_a_sample_that_is_a_batch_has_its_rows() -> None:
    assert count_samples(((torch.zeros(3, 64, 64),), ({"boxes": torch.zeros(5, 4)},)), 1) == 1
    assert [count_samples(torch.zeros(16, 4), 1), count_samples((torch.zeros(16, 4),), 1)] == [16, 16]
    assert [count_samples([torch.zeros(3, 64, 64)], 1), count_samples([{"image": torch.zeros(3, 64, 64)}], 1)] == [1, 1]


@pytest.mark.parametrize(
    ("delivered", "reads_worker_info", "words"),
    [
        (64, False, None),
        (128, False, "each of its workers returns all the data"),
        (128, True, None),
        (32, True, "leave"),
    ],
)
def test_workers_must_deliver_what_one_process_does_unless_each_draws_an_epoch(
    delivered: int, reads_worker_info: bool, words: str | None
) -> None:
    counts = SampleCountTracker()
    counts.check_shares(delivered, dropped=0, is_whole=True)  # nothing is known
    counts.samples, counts.reads_worker_info = 64, reads_worker_info
    if words is None:
        counts.check_shares(delivered, dropped=0, is_whole=True)
        return
    with pytest.raises(SampleCountError, match=f"a dataset of 64: {words}|a dataset of 64: the shards .* {words}"):
        counts.check_shares(delivered, dropped=0, is_whole=True)


def test_the_length_of_a_stream_that_nobody_counted_may_be_wrong() -> None:
    counts = SampleCountTracker(samples=64, is_claimed=True)
    with pytest.raises(SampleCountError, match="a dataset whose length is 64: it is wrong, or each of its workers"):
        counts.check_shares(128, dropped=0, is_whole=False)
