from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.child.device import (
    MAX_STEPS_AHEAD,
    CudaStepTimer,
    HostStepTimer,
    make_step_timer,
    reset_peak,
    resolve_device,
)


class FakeStream:
    """A device that works asynchronously, with a clock of its own."""

    def __init__(self) -> None:
        self.host = 0.0  # seconds on the clock of the host
        self.busy_until = 0.0

    def compute(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.host) + seconds

    def record(self) -> FakeEvent:
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.passed_at = max(stream.busy_until, stream.host)

    def query(self) -> bool:
        return self.passed_at <= self._stream.host

    def synchronize(self) -> None:
        self._stream.host = max(self._stream.host, self.passed_at)

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.passed_at - self.passed_at) * 1000


def run_steps(arrivals: list[float], step_seconds: float = 1.0) -> tuple[FakeStream, CudaStepTimer]:
    """Run a step for each batch that arrives, on a host that never waits for the device."""
    stream = FakeStream()
    timer = CudaStepTimer(stream.record)
    for arrival in arrivals:
        stream.host = max(stream.host, arrival)
        timer.ask()
        timer.begin()
        stream.compute(step_seconds)
        timer.end()
    return stream, timer


def test_a_step_ends_when_the_device_has_finished_it() -> None:
    stream, timer = run_steps([0.0, 0.0, 0.0])
    assert timer.read() == ([], 0.0)
    stream.host = 2.5
    assert timer.read()[0] == pytest.approx([1.0, 2.0])
    stream.host = 3.0
    assert timer.read()[0] == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("arrivals", "moments", "waits"),
    [([0.0, 0.5, 1.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]), ([0.25, 2.0, 4.0], [1.25, 3.0, 5.0], [0.25, 0.75, 1.0])],
)
def test_a_device_waits_from_the_end_of_a_step_to_the_arrival_of_the_next_batch(
    arrivals: list[float], moments: list[float], waits: list[float]
) -> None:
    stream, timer = run_steps(arrivals)
    stream.host = 5.0
    ended, waited = timer.read()
    assert (*ended, waited) == pytest.approx((*moments, sum(waits)))


def test_the_host_waits_for_a_device_that_is_many_steps_behind() -> None:
    stream, timer = run_steps([0.0] * 100)
    assert stream.host == pytest.approx(100 - MAX_STEPS_AHEAD)
    stream.host = stream.busy_until
    ended, waited = timer.read()
    assert (*ended, waited) == pytest.approx((*range(1, 101), 0.0))


def test_the_marks_of_a_step_are_on_the_device_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []

    def find_stream(device: torch.device | None = None) -> SimpleNamespace:
        used.append(device)
        return SimpleNamespace(record_event=lambda event: event)

    monkeypatch.setattr(torch.cuda, "current_stream", find_stream)
    monkeypatch.setattr(torch.cuda, "Event", SimpleNamespace)
    timer = make_step_timer(torch.device("cuda:0"))
    timer.begin()
    timer.end()
    assert used == [torch.device("cuda:0")] * 3


def test_the_host_waits_from_the_request_of_a_batch_to_its_arrival() -> None:
    moments = iter([10.0, 13.0, 16.0, 17.0, 17.5, 18.0])
    timer = HostStepTimer(torch.device("cpu"), lambda: next(moments))
    timer.begin()  # the start of the epoch asks for the first batch
    timer.end()
    timer.ask()
    timer.begin()
    timer.end()
    assert timer.read() == ([6.0, 8.0], 3.5)


def test_a_step_of_another_device_ends_when_the_device_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    timer = make_step_timer(torch.device("xpu"))
    timer.ask()
    timer.begin()
    timer.end()
    assert waited == [torch.device("xpu")]


@pytest.mark.parametrize("is_public", [True, False], ids=["torch 2.13", "torch 2.6"])
def test_pinned_memory_that_is_not_in_use_is_returned_with_that_of_the_device(
    is_public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, called=name: calls.append(called))
    monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
    holder, name = (torch.accelerator, "empty_host_cache") if is_public else (torch._C, "_host_emptyCache")
    monkeypatch.setattr(holder, name, lambda: calls.append("pinned"), raising=False)
    reset_peak(torch.device("cuda"))
    assert calls == ["empty_cache", "pinned", "reset_peak_memory_stats"]


def test_the_cpu_is_chosen_without_looking_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: pytest.fail("it looked"))
    assert resolve_device("cpu") == torch.device("cpu")
