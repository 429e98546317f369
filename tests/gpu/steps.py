"""Datasets and training steps for tests on a real device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

Step = Callable[[Any], None]
MIB = 1024**2


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Float samples of 64 KiB, made in no time."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((16, 1024), float(index)), index


def make_images() -> Images:
    return Images()


def make_linear_step(device: torch.device) -> Step:
    """Train one layer."""
    model = nn.Linear(1024, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        samples, _ = batch
        loss = model(samples.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def make_hungry_step(device: torch.device) -> Step:
    """Hold 512 MiB more at every step."""
    held: list[torch.Tensor] = []

    def step(batch: Any) -> None:
        held.append(torch.empty(512 * MIB, dtype=torch.uint8, device=device))

    return step


def make_step_out_of_range(device: torch.device) -> Step:
    """Look up a row that an embedding does not have, which leaves CUDA in an error for the rest of the process."""
    table = nn.Embedding(4, 8).to(device)

    def step(batch: Any) -> None:
        _, labels = batch
        if int(labels.max()) > 400:
            table(labels.to(device)).sum().item()

    return step
