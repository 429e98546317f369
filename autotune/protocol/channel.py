"""A private line between the tuner and its child: one message a line, over a socket of its own.

The user's code may print what it likes on stdout and stderr; nothing of it is ever taken for a message.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import Final

MAX_MESSAGE_BYTES: Final = 64 * 2**20


class ChannelClosedError(Exception):
    """The other side is gone, or sent more than a message may hold."""


class MessageTooLongError(ChannelClosedError):
    """The other side sent more than a message may hold; the line is of no use any more."""


class Channel:
    """Sends and receives lines of text over a connected stream socket, which it owns from then on."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._poll = select.poll()  # select() knows no descriptor above 1023
        self._poll.register(connection, select.POLLIN)
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()

    def send(self, line: str) -> None:
        """Send one message, without a line break; raises ChannelClosedError where the other side is gone."""
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def receive(self, timeout: float | None = None) -> str | None:
        """Wait for one message, at most so many seconds; None when the time ran out.

        Raises:
            MessageTooLongError: The message is longer than 64 MiB.
            ChannelClosedError: The other side is gone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._lines:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not self._poll.poll(left):
                return None
            self._fill()
        return self._lines.popleft().decode(errors="replace")

    def _fill(self) -> None:
        try:
            chunk = self._socket.recv(1 << 20)
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        if not chunk:
            raise ChannelClosedError("the other side closed the line")
        self._buffer += chunk
        if b"\n" in chunk:
            *lines, rest = self._buffer.split(b"\n")
            self._lines += [bytes(line) for line in lines]
            self._buffer = bytearray(rest)
        if len(self._buffer) > MAX_MESSAGE_BYTES:
            raise MessageTooLongError(f"a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def close(self) -> None:
        """Close the line."""
        self._socket.close()
