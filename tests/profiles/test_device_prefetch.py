from __future__ import annotations

import subprocess
import sys
from collections import UserDict, UserString, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import autotune
from autotune.profiles.device_prefetch import DeviceCopier, find_tensors, prefetch_batches

CPU = torch.device("cpu")


class DiaryCopier(DeviceCopier):
    """Records the calls."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.diary: list[str] = []

    def send(self, batch: Any) -> Callable[[], Any]:
        self.diary.append(f"send {batch}")

        def wait() -> Any:
            self.diary.append(f"take {batch}")
            return batch

        return wait


def test_the_copy_of_the_next_batch_starts_before_a_batch_is_yielded() -> None:
    copier = DiaryCopier()
    for batch in prefetch_batches(iter("abc"), copier):
        copier.diary.append(f"step {batch}")
    expected = "send a, send b, take a, step a, send c, take b, step b, take c, step c"
    assert copier.diary == expected.split(", ")


def test_an_error_of_the_loader_comes_after_the_batches_before_it() -> None:
    def fail_third() -> Iterator[str]:
        yield from "ab"
        raise OSError("the disk is gone")

    batches = prefetch_batches(fail_third(), DiaryCopier())
    assert [next(batches), next(batches)] == ["a", "b"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_an_epoch_can_be_left_early_and_another_one_begun() -> None:
    loader = autotune.device_prefetch([1, 2, 3], "cpu")
    for batch in loader:
        if batch == 2:
            break
    assert list(loader) == [1, 2, 3]
    assert len(loader) == 3
    assert list(autotune.device_prefetch([], "cpu")) == []


@pytest.mark.parametrize("device", [CPU, None])
def test_without_an_accelerator_batches_are_unchanged(
    device: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build for CUDA has a current accelerator on a machine without a GPU, too."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    batch = torch.ones(2)
    (received,) = autotune.device_prefetch([batch], device)
    assert received is batch


Pair = namedtuple("Pair", "left right")  # as user code has them


@dataclass(frozen=True)
class Labelled:
    images: torch.Tensor
    labels: list[torch.Tensor]
    source: str
    count: int = field(init=False, default=2)


class Custom:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Custom:
        return Custom(self.tensor.to(device))


META = torch.device("meta")  # a device that every build of torch has; nothing is computed there


def move(batch: Any) -> Any:
    (moved,) = prefetch_batches(iter([batch]), DeviceCopier(META))
    return moved


def test_nested_batches_keep_their_shape() -> None:
    one = torch.ones(2)
    moved = move({"pair": Pair(one, (one, [one])), "labelled": Labelled(one, [one], "web"), "name": "x", "n": 3})
    assert isinstance(moved["pair"], Pair)
    assert isinstance(moved["labelled"], Labelled)
    assert (moved["name"], moved["n"], moved["labelled"].source) == ("x", 3, "web")
    found = [moved["pair"].left, moved["pair"].right[0], moved["pair"].right[1][0], moved["labelled"].images]
    assert [tensor.device for tensor in (*found, moved["labelled"].labels[0])] == [META] * 5


def test_tensors_of_objects_that_refer_to_each_other_are_found_once() -> None:
    cells = [SimpleNamespace(value=torch.zeros(number), near=[]) for number in range(30)]
    for one in cells:
        one.near.extend(cells)  # there are more paths than anything could follow
    assert {len(one) for one in find_tensors(cells)} == set(range(30))
    assert len(list(find_tensors(cells))) == 30


class Endless(Sequence[Any]):
    """A sequence of new sequences."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return Endless()


def test_texts_have_no_tensors_and_a_sequence_without_an_end_is_an_error() -> None:
    assert list(find_tensors([UserString("text"), "text"])) == []
    with pytest.raises(RecursionError):
        list(find_tensors(Endless()))


def test_mappings_keep_their_type_and_custom_types_move_by_their_own_method() -> None:
    moved = move(UserDict(images=torch.ones(2), custom=Custom(torch.ones(2))))
    assert isinstance(moved, UserDict)
    assert (moved["images"].device, moved["custom"].tensor.device) == (META, META)


def test_training_code_gets_it_without_the_rest_of_dltune() -> None:
    code = "import sys, autotune; autotune.device_prefetch([1], 'cpu'); print({'optuna', 'pydantic'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
