"""Ports of 127.0.0.1 that stay a server's own while it is away: nobody is let in there, and nobody else can listen.

Each is bound by a socket that never listens. A server that sets SO_REUSEADDR, as they all do, can listen there too.
No process is given a port twice: streamer remembers for its life which servers answered, and waits for these alone.
"""

from __future__ import annotations

import secrets
import socket

__all__ = ["KeptPorts"]

# Below Linux's ephemeral ports (32768 and up), so that no client connects from there to itself; and below SeaweedFS's.
LOWEST_PORT, HIGHEST_PORT = 5_000, 12_000

_given: set[int] = set()  # by this process, ever


class KeptPorts:
    """Keeps so many free ports until `close`; also a context manager that gives their numbers.

    Attributes:
        numbers: The ports.
    """

    def __init__(self, count: int) -> None:
        self._sockets: dict[int, socket.socket] = {}
        while len(self._sockets) < count:
            port = secrets.choice(range(LOWEST_PORT, HIGHEST_PORT))  # tests may seed `random`
            if port in _given:
                continue
            kept = socket.socket()
            try:
                kept.bind(("127.0.0.1", port))  # before the option below: here nobody else may be
            except OSError:
                kept.close()
                continue
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sockets[port] = kept
            _given.add(port)
        self.numbers = list(self._sockets)

    def __enter__(self) -> list[int]:
        return self.numbers

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let them go. May be called twice."""
        for each in self._sockets.values():
            each.close()
