from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from autotune.child.probe_h2d import H2DBench, measure_h2d, overlap_fraction
from autotune.child.timing import time_device_calls

PAGEABLE, PINNED = 0.004, 0.001  # seconds a batch of one megabyte takes on the fake device
MEGABYTE = torch.zeros(1_000_000, dtype=torch.uint8)


class FakeDevice(H2DBench):
    """A device with a time of its own; copies on a stream of their own hide behind computing, or do not."""

    def __init__(self, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._pinned: set[int] = set()
        self._due, self._due_aside, self._time = 0.0, 0.0, 0.0

    def now(self) -> float:
        return self._time

    def pin(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pinned = [tensor.clone() for tensor in tensors]
        self._pinned |= {tensor.data_ptr() for tensor in pinned}
        return pinned

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        self._due += sum(PINNED if tensor.data_ptr() in self._pinned else PAGEABLE for tensor in tensors)

    def send_aside(self, tensors: Sequence[torch.Tensor]) -> None:
        self._due_aside += PINNED * len(tensors)

    def occupy(self, seconds: float) -> Callable[[], None]:
        def compute() -> None:
            self._due += seconds

        return compute

    def settle(self) -> None:
        self._time += max(self._due, self._due_aside) if self._overlaps else self._due + self._due_aside
        self._due = self._due_aside = 0.0


def test_pinned_and_pageable_memory_have_rates_of_their_own() -> None:
    device = FakeDevice(overlaps=True)
    found = measure_h2d([MEGABYTE], device)
    assert found is not None
    assert found.pageable == pytest.approx(1e6 / PAGEABLE, rel=1e-6)
    assert found.pinned == pytest.approx(1e6 / PINNED, rel=1e-6)


@pytest.mark.parametrize(("overlaps", "share"), [(True, 1.0), (False, 0.0)])
def test_overlap_is_what_both_together_save(overlaps: bool, share: float) -> None:
    device = FakeDevice(overlaps=overlaps)
    found = measure_h2d([MEGABYTE], device)
    assert found is not None
    assert found.overlap == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("batch", [[], "text", [torch.zeros(0)], torch.zeros(4, device="meta")])
def test_a_batch_without_tensors_in_host_memory_has_no_rates(batch: object) -> None:
    assert measure_h2d(batch, FakeDevice(overlaps=True)) is None


@pytest.mark.parametrize(
    ("computing", "copying", "together", "share"),
    [(2.0, 1.0, 2.0, 1.0), (2.0, 1.0, 3.0, 0.0), (2.0, 1.0, 2.5, 0.5), (2.0, 1.0, 3.5, 0.0), (1.0, 1.0, 0.9, 1.0)],
)
def test_overlap_is_a_share_of_the_shorter_work(
    computing: float, copying: float, together: float, share: float
) -> None:
    assert overlap_fraction(computing, copying, together) == pytest.approx(share)


def test_many_calls_are_timed_with_one_synchronisation() -> None:
    calls, waits = [], []
    time_device_calls(lambda: calls.append(1), lambda: waits.append(1))
    assert len(calls) > 10
    assert len(waits) == 3  # after the warm-up, after the one that plans the window, and after the window
