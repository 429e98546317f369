"""The training step of a request, and the built-in one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.child.step import BuiltInStep, make_step
from autotune.errors import UsageError
from autotune.request import WorkloadRequest

CPU = torch.device("cpu")


def returns(*got: Any) -> Callable[[Any], Any]:
    return lambda batch: got


@pytest.mark.parametrize(
    ("factory", "got"),
    [
        (lambda: returns("nothing"), ("nothing",)),
        (lambda lr=0.1, layers=2: returns(lr, layers), (0.1, 2)),
        (lambda *, lr=0.1: returns(lr), (0.1,)),
        (lambda device, lr=0.1: returns(device, lr), (CPU, 0.1)),
        (lambda device, /: returns(device), (CPU,)),
        (lambda where, lr=0.1: returns(where, lr), (CPU, 0.1)),
        (lambda lr=0.1, device="cuda": returns(lr, device), (0.1, CPU)),
        (lambda *, device: returns(device), (CPU,)),
        (lambda *args, **kwargs: returns(*args, kwargs), (CPU, {})),
    ],
)
def test_a_step_factory_gets_the_device_if_it_accepts_or_requires_one(
    factory: Callable[..., Any], got: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("user_steps")
    module.make = factory  # type: ignore[attr-defined]  # as the user's module has it
    monkeypatch.setitem(sys.modules, "user_steps", module)
    assert make_step(WorkloadRequest(dataset="pkg.data:make", step="user_steps:make"), CPU, Path())(None) == got


def test_a_step_that_is_named_instead_of_its_factory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("user_steps")
    module.step = lambda batch: batch.sum()  # type: ignore[attr-defined]  # as the user's module has it
    monkeypatch.setitem(sys.modules, "user_steps", module)
    with pytest.raises(UsageError, match="this one takes a batch itself"):
        make_step(WorkloadRequest(dataset="pkg.data:make", step="user_steps:step"), CPU, Path())


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
        {"images": torch.zeros(4, 3), "boxes": torch.zeros(0, 4)},
        [torch.eye(4).to_sparse(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)],
    ],
)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_built_in_step_trains_on_any_batch(batch: object, default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    try:
        step = BuiltInStep(CPU)
        for one in (batch, torch.zeros(4, 10), batch):
            step(one)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_the_built_in_step_leaves_quantized_tensors_out() -> None:
    BuiltInStep(CPU)([torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8), torch.ones(4, 3)])


@torch.no_grad()
def test_the_built_in_step_trains_though_the_users_module_has_disabled_gradients() -> None:
    BuiltInStep(CPU)(torch.ones(4, 3))
