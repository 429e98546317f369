"""The training step of a request, and the built-in one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.child.step import BuiltInStep, make_step
from autotune.request import WorkloadRequest

CPU = torch.device("cpu")


def returns_what_it_got(*got: Any) -> Callable[[Any], Any]:
    return lambda batch: got


def takes_nothing() -> Callable[[Any], Any]:
    return returns_what_it_got()


def has_settings(lr: float = 0.1, layers: int = 2) -> Callable[[Any], Any]:
    return returns_what_it_got(lr, layers)


def has_settings_by_name(*, lr: float = 0.1) -> Callable[[Any], Any]:
    return returns_what_it_got(lr)


def takes_device(device: torch.device) -> Callable[[Any], Any]:
    return returns_what_it_got(device)


def takes_it_positionally(device: torch.device, /) -> Callable[[Any], Any]:
    return returns_what_it_got(device)


def calls_it_otherwise(where: torch.device, lr: float = 0.1) -> Callable[[Any], Any]:
    return returns_what_it_got(where, lr)


def has_a_device_of_its_own(lr: float = 0.1, device: str = "cuda") -> Callable[[Any], Any]:
    return returns_what_it_got(lr, device)


def takes_it_by_name(*, device: torch.device) -> Callable[[Any], Any]:
    return returns_what_it_got(device)


def wraps_another(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return takes_device(*args, **kwargs)


@pytest.mark.parametrize(
    ("factory", "got"),
    [
        (takes_nothing, ()),
        (has_settings, (0.1, 2)),
        (has_settings_by_name, (0.1,)),
        (takes_device, (CPU,)),
        (takes_it_positionally, (CPU,)),
        (calls_it_otherwise, (CPU, 0.1)),
        (has_a_device_of_its_own, (0.1, CPU)),
        (takes_it_by_name, (CPU,)),
        (wraps_another, (CPU,)),
    ],
)
def test_a_step_factory_is_given_the_device_where_it_asks_for_it_and_never_as_something_else(
    factory: Callable[..., Any], got: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("user_steps")
    module.make = factory  # type: ignore[attr-defined]  # as the user's module has it
    monkeypatch.setitem(sys.modules, "user_steps", module)
    request = WorkloadRequest(dataset="pkg.data:make", step="user_steps:make")
    assert make_step(request, CPU)(None) == got


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(4, 3, 8, 8),
        torch.ones(4, 5, dtype=torch.int64),
        torch.ones(4, dtype=torch.bool),
        torch.ones(4, 2, dtype=torch.complex64),
        torch.tensor(1.0),
        torch.zeros(2, 5000),
        {"a": (torch.arange(4), [torch.arange(4), "text"])},
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
