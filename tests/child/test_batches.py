"""Whatever shape a batch has, its tensors are found, counted, moved and trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from autotune.child.probe import count_bytes
from autotune.child.sample_checks import count_samples
from autotune.child.step import BuiltInStep
from autotune.profiles.device_prefetch import find_tensors, move_batch

CPU = torch.device("cpu")


@dataclass
class Record:
    pixels: torch.Tensor
    name: str


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Custom:
    """A batch type of the user's own, with the methods that DataLoader and training code call."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.moved_to: torch.device | None = None

    def pin_memory(self) -> Custom:
        return self

    def to(self, device: torch.device) -> Custom:
        self.moved_to = device
        return self


FOUR = torch.arange(4)
NESTED: dict[str, Any] = {"a": (FOUR, [FOUR, "text"]), "b": Record(FOUR, "x"), "c": Pair(FOUR, FOUR), "d": 3}


def test_tensors_are_found_however_deep_they_lie() -> None:
    assert sum(1 for _ in find_tensors(NESTED)) == 5
    assert count_bytes(NESTED) == 5 * 4 * 8


def test_the_attributes_of_a_custom_batch_are_found() -> None:
    assert [tensor.tolist() for tensor in find_tensors(Custom(FOUR))] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [(FOUR, 4), (NESTED, 4), (["a", "b", "c"], 3), ([["a", "b"], ["c", "d"]], 2), (object(), 7), ("text", 7)],
)
def test_the_samples_of_a_batch_are_counted_or_taken_as_told(batch: object, samples: int) -> None:
    assert count_samples(batch, expected=7) == samples


def test_a_tensor_that_has_as_many_as_are_expected_counts_the_samples_wherever_it_stands() -> None:
    boxes, images = torch.zeros(56, 4), torch.zeros(32, 3)
    assert count_samples({"boxes": boxes, "images": images}, 32) == 32
    assert count_samples({"boxes": boxes, "images": images}, 16) == 56


def test_a_moved_batch_keeps_its_types() -> None:
    moved = move_batch(NESTED, CPU)
    assert isinstance(moved["a"], tuple)
    assert isinstance(moved["b"], Record)
    assert isinstance(moved["c"], Pair)
    assert (moved["a"][1][1], moved["b"].name, moved["d"]) == ("text", "x", 3)


def test_a_custom_batch_moves_itself() -> None:
    assert move_batch(Custom(FOUR), CPU).moved_to == CPU


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 3, 8, 8),
        torch.ones(4, 5, dtype=torch.int64),
        torch.ones(4, dtype=torch.bool),
        torch.ones(4, 2, dtype=torch.complex64),
        torch.tensor(1.0),
        torch.zeros(2, 5000),
        NESTED,
        ["no", "tensor"],
    ],
)
def test_the_built_in_step_trains_on_any_batch(batch: object) -> None:
    step = BuiltInStep(CPU)
    step(batch)
    step(batch)


def test_the_built_in_step_takes_batches_whose_shape_changes() -> None:
    step = BuiltInStep(CPU)
    for batch in (torch.zeros(4, 10), (torch.zeros(4, 20), torch.zeros(4)), torch.zeros(2, 3000)):
        step(batch)
