"""Memory, timers and copies of a real device."""

from __future__ import annotations

import itertools

import psutil
import pytest
import torch

from autotune.child.device import (
    SimulatedStep,
    limit_memory,
    make_step_timer,
    read_accelerator,
    read_peak,
    reset_peak,
    resolve_device,
    synchronize,
)
from autotune.child.probe import measure_h2d

MIB = 1024**2


@pytest.fixture
def device(needs_cuda: None) -> torch.device:
    return resolve_device("auto")


def test_the_device_is_found_and_described_and_its_room_is_less_than_the_whole(device: torch.device) -> None:
    assert device.type == "cuda"
    found = read_accelerator(device)
    assert found is not None
    assert found.name == torch.cuda.get_device_name(device)
    assert found.count >= 1
    assert found.memory_bytes > 0


def test_the_peak_of_a_trial_is_its_own(device: torch.device) -> None:
    held = torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    assert read_peak(device) >= 256 * MIB
    del held
    reset_peak(device)
    assert read_peak(device) < 256 * MIB


def test_pinned_memory_is_returned_when_a_trial_ends(device: torch.device) -> None:
    pinned = torch.zeros(256 * MIB, dtype=torch.uint8).pin_memory()
    before = psutil.Process().memory_info().rss
    del pinned
    reset_peak(device)
    assert psutil.Process().memory_info().rss < before - 200 * MIB


def test_the_allocator_refuses_more_than_its_budget(device: torch.device) -> None:
    reset_peak(device)
    try:
        limit_memory(device, 128 * MIB)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(256 * MIB, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_events_tell_when_steps_end_while_the_host_goes_on(device: torch.device) -> None:
    occupy = SimulatedStep(device, 0.02)
    synchronize(device)
    clock = make_step_timer(device)
    for _ in range(8):
        clock.ask()
        clock.begin()
        occupy()
        clock.end()
    assert len(clock.read()[0]) < 8  # the host did not wait
    synchronize(device)
    moments, waited = clock.read()
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert len(moments) == 8
    assert max(gaps) < 1.5 * min(gaps)  # one spell of computing is as long as another
    assert waited < 0.2 * moments[-1]


def test_pinned_copies_are_about_as_fast_as_others_or_faster(device: torch.device) -> None:
    found = measure_h2d([torch.zeros(64 * MIB, dtype=torch.uint8)], device)
    assert found is not None
    assert found.pinned > 0.8 * found.pageable


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_only_the_device_that_was_named_is_touched(needs_cuda: None) -> None:
    resolve_device("cuda:1")
    assert torch.cuda.current_device() == 1
    assert torch.cuda.memory_reserved(0) == 0
