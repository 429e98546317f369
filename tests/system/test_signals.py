from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from autotune.system.signals import DEBOUNCE_SECONDS, SIGNALS, defer_interrupts, raise_lost_interrupt, raise_on_signals


class InterruptedWhenFreed:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finalizer_swallowed_is_raised_later() -> None:
    with raise_on_signals():
        raise_lost_interrupt()
        InterruptedWhenFreed()
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interrupt()
    raise_lost_interrupt()


@pytest.fixture
def without_nohup() -> Iterator[None]:
    """The tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_sent_twice_interrupts_once(number: signal.Signals) -> None:
    with raise_on_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raise_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("times", "every_seconds", "least"), [(3, 1.1 * DEBOUNCE_SECONDS, 3), (10, DEBOUNCE_SECONDS / 4, 2)]
)
def test_a_user_who_presses_again_or_holds_the_key_interrupts_again(
    times: int, every_seconds: float, least: int
) -> None:
    interrupts = 0
    with raise_on_signals():
        for _ in range(times):
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                interrupts += 1
            time.sleep(every_seconds)
    assert interrupts >= least


def test_handlers_are_restored_and_those_of_the_system_and_of_other_threads_are_kept() -> None:
    before, found = [signal.getsignal(number) for number in SIGNALS], []

    def work() -> None:
        with raise_on_signals(), defer_interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with raise_on_signals(), defer_interrupts():
        pass
    with defer_interrupts():
        found.append(signal.getsignal(signal.SIGTERM))
    assert found == [signal.SIG_DFL] * 2
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_first_interrupt_at_the_end_of_a_run_is_ignored_and_the_second_one_raises() -> None:
    with raise_on_signals(), defer_interrupts():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(1.1 * DEBOUNCE_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
