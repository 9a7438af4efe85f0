"""A proxy before a real HTTP server that mutates its answers about objects; their bytes it passes on untouched."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers.background import served

from faults.mutations import MUTATIONS, Told

__all__ = ["MutatingProxy"]

PROBE = ("bytes=0-0", "")  # asks what there is; a longer range asks for bytes
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


class MutatingProxy:
    """Context manager.

    Args:
        port: Of the server, on loopback.
        drawn: Decides what is mutated, and how.
        share: Of the answers about objects.

    Attributes:
        mutations: How often each was made.
    """

    def __init__(self, port: int, drawn: random.Random, share: float) -> None:
        self._port, self._drawn, self._share = port, drawn, share
        self._guard = threading.Lock()
        self.mutations: Counter[str] = Counter()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._running: AbstractContextManager[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def __enter__(self) -> MutatingProxy:
        self._running = served(self._server)
        self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._running is not None
        self._running.__exit__(None, None, None)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                reported = proxy.fetched(self)
                if self.headers.get("Range", "") in PROBE:
                    proxy.mutate(reported)
                with suppress(OSError):  # the client went away
                    self.wfile.write(b"HTTP/1.1 %d Told\r\n" % reported.status)
                    self.wfile.write(b"".join(b"%s: %s\r\n" % header for header in reported.headers) + b"\r\n")
                    if self.command != "HEAD":
                        self.wfile.write(reported.body)
                self.close_connection = self.close_connection or reported.is_cut

            do_HEAD = do_GET  # noqa: N815 (the base class's name)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base class's name)
                """Say nothing."""

        return Handler

    def fetched(self, handler: BaseHTTPRequestHandler) -> Told:
        """Ask the server what the client asks."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.getheaders()
            if name.lower() not in HOP_BY_HOP
        ]
        reported = Told(answer.status, headers, body)
        if handler.command != "HEAD":
            reported.set_header(b"Content-Length", str(len(body)).encode())
        return reported

    def mutate(self, reported: Told) -> None:
        """Change the answer, or leave it, as is drawn."""
        with self._guard:
            if self._drawn.random() < self._share:
                change = self._drawn.choice(MUTATIONS)
                change(reported, self._drawn)
                self.mutations[change.__name__] += 1


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that leaves is no news here."""
