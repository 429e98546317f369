from __future__ import annotations

import signal
import threading
import time

import pytest

from autotune.system.signals import DEBOUNCE_SECONDS, defer_interrupts, raise_lost_interrupt, raise_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_is_a_keyboard_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), raise_on_signals():
        signal.raise_signal(number)


class InterruptedWhenFreed:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finalizer_swallowed_is_raised_where_nothing_may_go_on() -> None:
    with raise_on_signals():
        raise_lost_interrupt()
        InterruptedWhenFreed()
        with pytest.raises(KeyboardInterrupt):
            raise_lost_interrupt()
    raise_lost_interrupt()


def test_a_signal_that_is_sent_twice_interrupts_once() -> None:
    with raise_on_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_later_on_is_heard() -> None:
    with raise_on_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        time.sleep(1.1 * DEBOUNCE_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def press(times: int, every_seconds: float) -> int:
    """Press Ctrl-C so many times, and count how often it is heard."""
    heard = 0
    for _ in range(times):
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(every_seconds)
        except KeyboardInterrupt:
            heard += 1
            time.sleep(every_seconds)
    return heard


def test_whoever_presses_twice_a_second_is_heard_each_time() -> None:
    with raise_on_signals():
        assert press(3, every_seconds=0.5) == 3


def test_whoever_keeps_the_key_down_is_heard_again() -> None:
    with raise_on_signals():
        assert press(10, every_seconds=DEBOUNCE_SECONDS / 4) >= 2


def test_handlers_are_put_back_as_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with raise_on_signals(), defer_interrupts():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_has_to_be_finished_is_finished_although_it_is_interrupted() -> None:
    done = []
    with raise_on_signals(), defer_interrupts():
        signal.raise_signal(signal.SIGTERM)
        done.append("profile")
    assert done == ["profile"]


def test_a_user_who_insists_gets_through() -> None:
    with raise_on_signals(), defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        time.sleep(1.1 * DEBOUNCE_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_the_callers_program_leaves_to_the_system_is_left_to_it() -> None:
    with defer_interrupts():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_thread_that_may_not_set_handlers_goes_on_without() -> None:
    done = []

    def work() -> None:
        with raise_on_signals(), defer_interrupts():
            done.append("profile")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["profile"]
