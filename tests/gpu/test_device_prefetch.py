"""Copies on a stream of their own, on a real device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import autotune
from tests.gpu.steps import Images

ROUNDS = 3


def make_loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(Images(), batch_size=32, pin_memory=True, num_workers=2, **options)


def compute_slowly(samples: torch.Tensor) -> torch.Tensor:
    """Read a batch late: the device is busy with something else first."""
    torch.cuda._sleep(2_000_000)
    return samples.mean(dim=(1, 2))


def test_what_a_slow_step_reads_is_the_batch_that_was_loaded() -> None:
    loader = autotune.device_prefetch(make_loader(persistent_workers=True), "cuda")
    for _ in range(ROUNDS):
        read = [(compute_slowly(samples), labels) for samples, labels in loader]
        for means, labels in read:
            assert torch.equal(means.cpu(), labels.cpu().float())


def test_memory_of_a_batch_is_not_used_again_before_the_step_is_through_with_it() -> None:
    loader = autotune.device_prefetch(make_loader(), "cuda")
    sums = []
    for samples, labels in loader:
        sums.append((compute_slowly(samples), labels))
        del samples  # its memory goes back to the allocator while the device has yet to read it
    assert all(torch.equal(means.cpu(), labels.cpu().float()) for means, labels in sums)


def test_custom_types_are_pinned_and_moved_by_their_own_methods() -> None:
    class Batch:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def to(self, device: torch.device, *, non_blocking: bool = False) -> Batch:
            return Batch(self.tensor.to(device, non_blocking=non_blocking))

    source = [Batch(torch.full((4,), float(number)).pin_memory()) for number in range(8)]
    received = [batch.tensor for batch in autotune.device_prefetch(source, "cuda")]
    assert [float(tensor[0]) for tensor in received] == [float(number) for number in range(8)]
    assert {tensor.device.type for tensor in received} == {"cuda"}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_than_the_current_one_can_be_named() -> None:
    (batch,) = autotune.device_prefetch([torch.ones(4).pin_memory()], "cuda:1")
    assert batch.device == torch.device("cuda:1")
    assert float(batch.sum()) == 4.0
