"""The training step: the user's own, a simulated one, or a small built-in one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from autotune.child.custom_loaders import describe
from autotune.child.device import SimulatedStep
from autotune.child.workload import import_attribute
from autotune.errors import UsageError
from autotune.profiles.device_prefetch import find_tensors, move_batch
from autotune.profiles.loaders import read_signature
from autotune.request import WorkloadRequest

Step = Callable[[Any], object]
FEATURES: Final = 1024  # of each tensor of a sample that the built-in model uses
HIDDEN: Final = 64


def make_step(request: WorkloadRequest, device: torch.device, folder: Path) -> Step:
    """Return the step that a request asks for; its file is relative to `folder`."""
    if request.step is not None:
        step = _call_factory(import_attribute(request.step, folder), device)
        if not callable(step):
            raise UsageError(f"--step {request.step}: it returned {describe(step)}, not a function step(batch).")
        return step
    if request.step_seconds is None:
        return BuiltInStep(device)
    simulated = SimulatedStep(device, request.step_seconds)
    return simulated if device.type == "cpu" else lambda batch: simulated(move_batch(batch, device))


def _call_factory(factory: Callable[..., Step], device: torch.device) -> Step:
    """Pass the device as the parameter `device`, or as a required one; never as an optional one of another name.

    A wrapper with `*args` most likely wraps a factory that takes the device.
    """
    parameters = read_signature(factory).parameters.values()
    if any(one.name == "device" and one.kind is not one.POSITIONAL_ONLY for one in parameters):
        return factory(device=device)
    if any(one.name == "batch" for one in parameters):
        raise UsageError("--step names a function that returns the training step, and this one takes a batch itself.")
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    is_required = any(one.default is one.empty and one.kind not in by_name for one in parameters)
    return factory(device) if is_required else factory()


class BuiltInStep:
    """A training step for any batch: a linear layer over at most 1,024 features of each tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._layer = device, nn.Linear(FEATURES, HIDDEN).to(device)
        self._optimizer = torch.optim.SGD(self._layer.parameters(), lr=1e-6)

    @torch.enable_grad()  # the user's module may have disabled it
    def __call__(self, batch: Any) -> None:
        """Train on the tensors of one batch."""
        plain = (one for one in find_tensors(batch) if not (one.is_nested or one.is_quantized))
        dense = (one for one in plain if one.layout is torch.strided and one.numel())
        tensors = [_select_features(one.to(self._device, non_blocking=True)) for one in dense]
        if tensors:
            self._optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(sum(self._layer(tensor).square().mean() for tensor in tensors))
            self._optimizer.step()


def _select_features(tensor: torch.Tensor) -> torch.Tensor:
    """Shape a tensor of any shape and type as (samples, 1024) floats."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    rows = tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)[:, :FEATURES].detach()
    rows = rows.to(torch.get_default_dtype())
    return nn.functional.pad(rows, (0, FEATURES - rows.shape[1]))
