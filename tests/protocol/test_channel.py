from __future__ import annotations

import contextlib
import fcntl
import itertools
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.protocol.messages import MAX_MESSAGE_BYTES, Channel, ChannelClosedError, MessageTooLongError


@contextlib.contextmanager
def open_line() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), max_size=20)


@given(lines=LINES)
def test_messages_arrive_whole_and_in_order(lines: list[str]) -> None:
    with open_line() as (channel, other):
        sender = Channel(other)
        for line in lines:
            sender.send(line)
        assert [channel.receive(1.0) for _ in lines] == lines
        assert channel.receive(0.0) is None


@given(lines=LINES.filter(bool), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_messages_survive_being_torn_anywhere(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    received = []
    with open_line() as (channel, other):
        for start, end in itertools.pairwise(edges):
            other.sendall(data[start:end])
            while (line := channel.receive(0.0)) is not None:
                received.append(line)
    assert received == lines


def test_a_message_that_does_not_come_is_waited_for_no_longer_than_asked() -> None:
    with open_line() as (channel, other):
        other.sendall(b"half a mess")
        started = time.monotonic()
        assert channel.receive(0.05) is None
        assert 0.04 < time.monotonic() - started < 0.5
        other.sendall(b"age\n")
        assert channel.receive(1.0) == "half a message"


def test_what_was_said_before_the_line_closed_is_still_heard() -> None:
    with open_line() as (channel, other):
        other.sendall(b"one\ntwo\nand a torn")
        other.close()
        assert channel.receive(1.0) == "one"
        assert channel.receive(1.0) == "two"
        with pytest.raises(ChannelClosedError):
            channel.receive(1.0)


def test_speaking_into_a_closed_line_is_reported_as_such() -> None:
    with open_line() as (channel, other):
        other.close()
        with pytest.raises(ChannelClosedError):
            channel.send("is anybody there?")


def test_bytes_that_are_no_text_do_not_break_the_line() -> None:
    with open_line() as (channel, other):
        other.sendall(b"\xff\x00\n{}\n")
        assert channel.receive(1.0) == "\ufffd\x00"
        assert channel.receive(1.0) == "{}"


def test_a_message_without_an_end_is_given_up_before_it_fills_memory() -> None:
    with open_line() as (channel, other):

        def flood() -> None:
            with contextlib.suppress(OSError):
                for _ in range(MAX_MESSAGE_BYTES // 2**20 + 2):
                    other.sendall(bytes(2**20))

        sender = threading.Thread(target=flood)
        sender.start()
        with pytest.raises(MessageTooLongError, match="more than 64 MiB"):
            channel.receive(20.0)
        channel.close()
        sender.join()


def test_a_line_works_in_a_process_that_has_more_than_1024_open_files() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 2000:
        pytest.skip("the limit of open files is too low here")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
        theirs.sendall(b"hello\n")
        assert Channel(high).receive(1.0) == "hello"
