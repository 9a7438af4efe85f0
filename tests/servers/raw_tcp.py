"""A server on loopback that says to each connection what a test wants, HTTP or not."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

from servers.background import served

__all__ = ["FullQueue", "Speaker", "asked", "repeating", "speaking"]

REQUEST_BYTES = 64 << 10
GIVE_UP_S = 10.0  # for a client that asks nothing
BETWEEN_S = 0.02

Speaker = Callable[[socket.socket, threading.Event], None]


@contextmanager
def speaking(speaker: Speaker) -> Iterator[str]:
    """Serve inside the block, and give ``http://host:port``.

    Args:
        speaker: Called with each connection, which it need not close, and an event that is set at the end.
    """
    stopping = threading.Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(GIVE_UP_S)
            with suppress(OSError):  # the client has left
                speaker(self.request, stopping)

    server = ThreadingTCPServer(("127.0.0.1", 0), Handler)
    with served(server):
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            stopping.set()


def asked(connection: socket.socket) -> None:
    """Wait for a request."""
    connection.recv(REQUEST_BYTES)


def repeating(head: bytes, piece: bytes) -> Speaker:
    """Answer each request with `head`, and then with `piece` now and then, as long as somebody listens."""

    def speaker(connection: socket.socket, stopping: threading.Event) -> None:
        asked(connection)
        connection.sendall(head)
        while not stopping.wait(BETWEEN_S):
            connection.sendall(piece)

    return speaker


class FullQueue:
    """A port whose queue of connections is full: the kernel answers nothing to the next.

    Attributes:
        port: On loopback.
        own_ports: Of the connections that fill the queue.
    """

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = int(self._listener.getsockname()[1])
        self._filling = [socket.socket() for _ in range(4)]
        for each in self._filling:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", self.port))
        self.own_ports = {int(each.getsockname()[1]) for each in self._filling}

    def close(self) -> None:
        """Reset all connections."""
        for each in (self._listener, *self._filling):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
