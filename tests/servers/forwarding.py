"""An HTTP proxy before a real store that refuses requests in the store's place, or loses the store's answers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from servers.background import served

__all__ = ["Fault", "ForwardingProxy"]

Fault = Literal["refuse", "lose", "stall", "damage", "swallow", "hold", None] | tuple[int, bytes]
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired</Message></Error>"
_UNKNOWN = b"<Error><Code>NotImplemented</Code><Message>A header is not implemented</Message></Error>"
HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


class ForwardingProxy:
    """A context manager around one proxy; requests keep their ``Host``, so that signatures stay valid.

    Args:
        port: Of the store, on loopback.
        decide: Called with method and path of each request: ``"refuse"`` answers 503, ``"lose"`` passes the request on
            and closes the connection without an answer, ``"stall"`` passes it on and is silent until the client leaves,
            ``"hold"`` answers 503 when `released` is set, ``"damage"`` changes a byte of the request's body,
            ``"swallow"`` confirms the body and passes nothing on, a status and a body are the answer, None passes both
            on.
        unknown: A request with this header is answered with 501.
        dropped: A header that no answer has.

    Attributes:
        port: Where it listens.
        requests: Method and path of each request.
        signed: Paths of the requests to S3 whose signature covers the body.
        most_at_once: Most requests that were passed on at the same time.
        released: Ends the wait of all requests that are held.
        expired_key: Requests that are signed with this access key are answered as those with an expired one.
    """

    def __init__(self, port: int, decide: Callable[[str, str], Fault], *, unknown: str = "", dropped: str = "") -> None:
        self._store_port, self._decide = port, decide
        self._unknown, self._dropped = unknown, dropped
        self._guard = threading.Condition()
        self._pending = 0
        self.requests: list[tuple[str, str]] = []
        self.signed: list[str] = []
        self.expired_key, self.released = "", threading.Event()
        self.most_at_once = self._at_once = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._running: AbstractContextManager[None] | None = None

    def __enter__(self) -> ForwardingProxy:
        self._running = served(self._server)
        self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._running is not None
        self._running.__exit__(None, None, None)

    def settle(self) -> None:
        """Wait until the store has answered what was passed on, also for clients that have left."""
        with self._guard:
            assert self._guard.wait_for(lambda: not self._pending, timeout=60)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._guard:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._guard:
                self._at_once -= 1

    def _forwarded(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._store_port, timeout=60)
        try:
            connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in handler.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            dropped = HOP_BY_HOP[:-1] if handler.command == "HEAD" else HOP_BY_HOP
            headers = [
                (name, value) for name, value in answer.getheaders() if name.lower() not in (*dropped, self._dropped)
            ]
            return answer.status, headers, answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    proxy: ForwardingProxy
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True  # 40 ms less for each answer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with self.proxy._guard:
            self.proxy.requests.append((self.command, self.path))
            if self.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD") != "UNSIGNED-PAYLOAD":
                self.proxy.signed.append(self.path)
            fault = self.proxy._decide(self.command, self.path)
            self.proxy._pending += 1
        try:
            self._handle(fault, body)
        finally:
            with self.proxy._guard:
                self.proxy._pending -= 1
                self.proxy._guard.notify_all()

    def _handle(self, fault: Fault, body: bytes) -> None:
        if fault == "hold":
            self.proxy.released.wait(120)
        if fault in ("refuse", "hold"):
            fault = 503, b""
        elif self.proxy.expired_key and self.proxy.expired_key in self.path + self.headers.get("Authorization", ""):
            fault = 400, _EXPIRED
        elif self.proxy._unknown in self.headers:
            fault = 501, _UNKNOWN
        if isinstance(fault, tuple):
            self._send(fault[0], [], fault[1])
        elif fault == "swallow":
            confirmed = [(name, value) for name, value in self.headers.items() if name.startswith("x-amz-checksum")]
            self._send(200, [("ETag", f'"{md5(body, usedforsecurity=False).hexdigest()}"'), *confirmed], b"")
        else:
            self._forward(fault, body)

    def _forward(self, fault: Fault, body: bytes) -> None:
        if fault == "damage":
            body = body[:-1] + bytes([body[-1] ^ 1])
        with self.proxy._counted():
            status, headers, answer = self.proxy._forwarded(self, body)
        if fault == "stall":
            self.rfile.read(1)
        if fault in ("lose", "stall"):
            self.close_connection = True
            return
        self._send(status, headers, answer)

    def _send(self, status: int, headers: list[tuple[str, str]], answer: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 (the base class's names)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base class's name)
        """Say nothing."""
