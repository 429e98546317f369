"""What a channel carries, what a child may report, and what a record may hold."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.config import MAX_TEXT_LENGTH
from autotune.protocol import messages
from autotune.protocol.measurement import Measurement
from autotune.protocol.messages import Channel, ChannelClosedError, FailureReport, ProbeReport
from tests.builders import make_trace, make_workload

HALF_A_MESSAGE = struct.pack("!i", 100) + b"half of a mess"


@contextlib.contextmanager
def open_channel(pause_seconds: float = 10.0) -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, pause_seconds)
    with theirs, contextlib.closing(channel):
        yield channel, theirs


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_messages_arrive_whole_and_in_order(texts: list[str]) -> None:
    with open_channel() as (channel, other), contextlib.closing(Channel(other)) as sender:
        for text in texts:
            sender.send(text)
        assert [channel.receive(1.0) for _ in texts] == texts
        assert channel.receive(0.0) is None


@given(chunks=st.lists(st.binary(max_size=50), max_size=5))
def test_any_bytes_are_messages_or_the_end_of_the_channel(chunks: list[bytes]) -> None:
    with open_channel() as (channel, other):
        for chunk in chunks:
            other.sendall(chunk)
        other.close()
        received: list[str | None] = []
        with pytest.raises(ChannelClosedError):
            received.extend(iter(lambda: channel.receive(0.0), None))
        assert all(isinstance(one, str) for one in received)


@pytest.mark.parametrize("timeout", [0.0, 1.0, None])
def test_a_process_that_stops_within_a_message_counts_as_gone(timeout: float | None) -> None:
    with open_channel(pause_seconds=0.05) as (channel, other):
        other.sendall(HALF_A_MESSAGE)
        for _ in range(2):
            with pytest.raises(ChannelClosedError):
                channel.receive(timeout)


def test_a_process_that_reads_nothing_counts_as_gone_when_its_buffer_is_full() -> None:
    with open_channel(pause_seconds=0.05) as (channel, _):
        with pytest.raises(ChannelClosedError):
            channel.send("x" * 2**22)
        with pytest.raises(ChannelClosedError):  # the rest of the message is missing
            channel.send("more")


def test_messages_from_before_the_end_of_the_channel_are_received() -> None:
    with open_channel() as (channel, other):
        sender = Channel(other)
        sender.send("last words")
        sender.close()
        assert channel.receive(1.0) == "last words"
        with pytest.raises(ChannelClosedError):
            channel.receive(1.0)
        with pytest.raises(ChannelClosedError):
            channel.send("is anybody there?")


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with open_channel() as (channel, other):
        other.sendall(struct.pack("!i", messages.MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ChannelClosedError):
            channel.receive(1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_seconds": (0.2, 0.1)}, "must ascend"),
        ({"end_seconds": 0.1}, "before its last batch"),
        ({"closed_after": 3}, "more batches than it has"),
        ({"end_seconds": 1e10}, "less than or equal to"),
        ({"wait_seconds": float("nan")}, "less than or equal to"),
        ({"samples": 2**63}, "less than or equal to"),
    ],
)
def test_an_epoch_that_no_clock_can_have_measured_is_refused(changes: dict[str, Any], words: str) -> None:
    trace = make_trace([0.1, 0.1])
    with pytest.raises(ValidationError, match=words):
        type(trace).model_validate(trace.model_dump() | changes)


@pytest.mark.parametrize(("changes", "words"), [({"samples": 0}, "no sample"), ({"end_seconds": 0.0}, "take no time")])
def test_a_measurement_of_nothing_is_refused(changes: dict[str, Any], words: str) -> None:
    trace = make_trace([0.0]).model_dump() | changes
    document = {"epochs": [trace | {"batch_seconds": []}], "epoch_batches": 1, "stopped": "done"}
    with pytest.raises(ValidationError, match=words):
        Measurement.model_validate(document)


def test_a_long_text_is_cut_in_the_middle_and_a_traceback_is_kept_whole() -> None:
    long = FailureReport(stage="trial", error="start" + "x" * 10**6 + "end", details="x" * MAX_TEXT_LENGTH)
    assert len(long.error) < MAX_TEXT_LENGTH + 100
    assert long.error.startswith("start")
    assert long.error.endswith("end")
    assert "980,008 characters omitted" in long.error
    assert long.details == "x" * MAX_TEXT_LENGTH


def test_a_long_variable_of_the_environment_is_kept_whole() -> None:
    environment = {"CONFIG": "x" * (MAX_TEXT_LENGTH + 1)}
    assert ProbeReport(profile=make_workload(), environment=environment).environment == environment
