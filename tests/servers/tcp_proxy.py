"""A TCP proxy on loopback that can hold back answers, cut connections, and count requests of ONC RPC (RFC 5531).

Stands between a client and a real server, so that a test decides when the network fails.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

__all__ = ["TcpProxy"]

CHUNK_BYTES = 1 << 18


class TcpProxy:
    """A context manager around one proxy.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        connections: Connections taken so far.
        requests: RPC calls seen so far, whole ones.
    """

    def __init__(self, server_port: int) -> None:
        self.connections = 0
        self.requests = 0
        self._server_port = server_port
        self._changed = threading.Condition()
        self._hold_from: int | None = None
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> TcpProxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._may_answer.set()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def hold(self) -> None:
        """Pass on no answer until `release`; requests still go through."""
        self._may_answer.clear()

    def hold_from(self, request: int) -> None:
        """Pass on no answer once that many requests have been seen in all, until `release`."""
        self._hold_from = request

    def release(self) -> None:
        """Pass on answers again, those held back first."""
        self._hold_from = None
        self._may_answer.set()

    def cut(self) -> None:
        """Close every connection there is now."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def wait_for_requests(self, count: int) -> None:
        """Wait until that many requests have been seen in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, timeout=30), self.requests

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets += [client, server]
            self.connections += 1
            self._start(self._pass_requests, client, server)
            self._start(self._pass_answers, server, client)

    def _start(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        unread = b""
        while data := _receive(client, server):
            unread += data
            while len(unread) >= 4 and len(unread) >= 4 + (size := int.from_bytes(unread[:4], "big") & 0x7FFFFFFF):
                unread = unread[4 + size :]
                with self._changed:
                    self.requests += 1
                    if self.requests == self._hold_from:
                        self._may_answer.clear()
                    self._changed.notify_all()
            with contextlib.suppress(OSError):
                server.sendall(data)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        while data := _receive(server, client):
            self._may_answer.wait()
            with contextlib.suppress(OSError):
                client.sendall(data)


def _receive(source: socket.socket, other: socket.socket) -> bytes:
    """Give what has come; at the end close the other side too, and give nothing."""
    try:
        data = source.recv(CHUNK_BYTES)
    except OSError:
        data = b""
    if not data:
        for each in (source, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    return data
