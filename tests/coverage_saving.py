"""A plugin of coverage.py: a child saves what it ran before it says anything, since it may be killed right after."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from coverage import Coverage

if TYPE_CHECKING:
    from coverage.plugin_support import Plugins


def coverage_init(registry: Plugins, options: Any) -> None:
    """Let a process of a trial save what was counted so far with each message."""
    if "autotune.child" in sys.orig_argv:
        socket.socket.sendall = _save_and_send  # type: ignore[assignment]


_send = socket.socket.sendall


def _save_and_send(connection: socket.socket, *arguments: Any) -> None:
    coverage = Coverage.current()
    if coverage is not None:
        coverage.save()
    _send(connection, *arguments)
