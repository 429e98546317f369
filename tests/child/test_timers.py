from __future__ import annotations

import pytest

from autotune.child.timers import MAX_STEPS_AHEAD, CudaStepTimer, HostStepTimer


class FakeStream:
    """A device that works through what it is given, on a time of its own.

    Attributes:
        host: What the host's clock shows, in seconds.
        busy_until: When the device will have done all it was given.
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.busy_until = 0.0
        self.made = 0

    def compute(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.host) + seconds

    def make_event(self) -> FakeEvent:
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.passed_at = 0.0

    def record(self) -> None:
        self.passed_at = max(self._stream.busy_until, self._stream.host)

    def query(self) -> bool:
        return self.passed_at <= self._stream.host

    def synchronize(self) -> None:
        self._stream.host = max(self._stream.host, self.passed_at)

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.passed_at - self.passed_at) * 1000


def run_steps(stream: FakeStream, clock: CudaStepTimer, arrivals: list[float], step_seconds: float) -> None:
    """Give the device a step at each arrival, on a host that never waits for it."""
    for arrival in arrivals:
        stream.host = max(stream.host, arrival)
        clock.ask()
        clock.begin()
        stream.compute(step_seconds)
        clock.end()


def test_steps_end_when_the_device_is_through_with_them_not_when_they_were_given_to_it() -> None:
    stream = FakeStream()
    clock = CudaStepTimer(stream.make_event)
    run_steps(stream, clock, [0.0, 0.0, 0.0], step_seconds=1.0)
    assert clock.read() == ([], 0.0)
    stream.host = 2.5
    assert clock.read()[0] == pytest.approx([1.0, 2.0])
    stream.host = 3.0
    assert clock.read()[0] == pytest.approx([1.0, 2.0, 3.0])


def test_a_device_that_is_always_busy_waits_for_no_data() -> None:
    stream = FakeStream()
    clock = CudaStepTimer(stream.make_event)
    run_steps(stream, clock, [0.0, 0.5, 1.0], step_seconds=1.0)
    stream.host = 3.0
    assert clock.read()[1] == pytest.approx(0.0)


def test_a_device_waits_from_the_end_of_a_step_to_the_arrival_of_the_next_batch() -> None:
    stream = FakeStream()
    clock = CudaStepTimer(stream.make_event)
    run_steps(stream, clock, [0.25, 2.0, 4.0], step_seconds=1.0)
    stream.host = 5.0
    moments, waited = clock.read()
    assert moments == pytest.approx([1.25, 3.0, 5.0])
    assert waited == pytest.approx(0.25 + 0.75 + 1.0)


def test_the_host_waits_for_a_device_that_is_many_steps_behind() -> None:
    stream = FakeStream()
    clock = CudaStepTimer(stream.make_event)
    run_steps(stream, clock, [0.0] * 100, step_seconds=1.0)
    assert stream.host == pytest.approx(100 - MAX_STEPS_AHEAD)
    stream.host = stream.busy_until
    moments, waited = clock.read()
    assert moments == pytest.approx([float(number) for number in range(1, 101)])
    assert waited == pytest.approx(0.0)


def test_marks_are_used_again() -> None:
    stream = FakeStream()
    clock = CudaStepTimer(stream.make_event)
    for number in range(100):
        run_steps(stream, clock, [float(number)], step_seconds=0.5)
        stream.host = number + 0.9
        clock.read()
    assert stream.made < 10
    moments, waited = clock.read()
    assert moments == pytest.approx([number + 0.5 for number in range(100)])
    assert waited == pytest.approx(99 * 0.5)


def test_the_hosts_clock_counts_the_time_between_asking_and_beginning_as_waiting() -> None:
    moments = iter([10.0, 11.0, 13.0, 16.0, 17.0, 17.5, 18.0])
    clock = HostStepTimer(lambda: next(moments))
    for _ in range(2):
        clock.ask()
        clock.begin()
        clock.end()
    assert clock.read() == ([6.0, 8.0], 2.5)
