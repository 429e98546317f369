"""A TCP server that returns what it receives."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(8):
            self.request.sendall(received)


@contextmanager
def serve_echo() -> Iterator[tuple[str, int]]:
    """Serve in a thread; yield the address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        try:
            yield "127.0.0.1", server.server_address[1]
        finally:
            server.shutdown()
