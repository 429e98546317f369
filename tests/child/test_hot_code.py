from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from autotune.child.hot_code import find_costly_lines
from autotune.child.workload import LoadedWorkload
from autotune.workload import Workload


class Decoded(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(20e-3)
        return self.flip(index)

    def flip(self, index: int) -> torch.Tensor:
        time.sleep(4e-3)
        return torch.tensor(index)


class CallsThroughALibrary(Decoded):
    def __getitem__(self, index: int) -> torch.Tensor:
        max(index, index + 1, key=self.wait)
        return torch.tensor(index)

    def wait(self, index: int) -> Fraction:
        time.sleep(5e-3)
        return Fraction(index)


class Fails(Decoded):
    def __getitem__(self, index: int) -> Any:
        raise ValueError(index)


def find(dataset: Dataset[Any], **parts: Callable[[Any], Any]) -> dict[str, float]:
    lines = find_costly_lines(LoadedWorkload(parts=Workload(dataset=dataset, **parts)))  # type: ignore[arg-type]
    assert all(line.source.startswith(f"def {line.function}(") for line in lines)
    return {line.function: line.share for line in lines}


def test_functions_are_ranked_by_their_share_with_libraries_and_without_other_user_functions() -> None:
    shares = find(Decoded())
    assert list(shares) == ["__getitem__", "flip"]
    assert shares["__getitem__"] > 2 * shares["flip"] > 0.05


def test_a_function_that_a_library_calls_does_not_count_for_its_caller() -> None:
    shares = find(CallsThroughALibrary())
    assert list(shares) == ["wait"]
    assert shares["wait"] > 0.8


def test_a_dataset_that_fails_has_no_costly_functions() -> None:
    assert find(Fails()) == {}


def test_functions_of_libraries_are_not_listed() -> None:
    assert find(TensorDataset(torch.zeros(1_000_000, 8))) == {}
