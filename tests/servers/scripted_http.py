"""An HTTP server on loopback that serves one object correctly, except where a script says otherwise.

Every request is recorded. The script is called for each request and may take over its answer; so each test says in a
line or two what goes wrong and when.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trustme

from servers.background import served


@dataclass(frozen=True)
class Request:
    """What the server saw: number from 0, path with query, half-open range, headers in lower case."""

    number: int
    path: str
    begin: int
    end: int
    headers: dict[str, str]


class Answer:
    """The answer under way; a script changes it before it is sent."""

    def __init__(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        self.handler = handler
        self.status = status
        self.headers = headers
        self.body = body
        self.sent_bytes: int | None = None  # cut the connection after that many bytes of the body

    def send(self) -> None:
        """Send it, and close the connection when it is cut short."""
        send_status = self.handler.send_response_only if "Date" in self.headers else self.handler.send_response
        send_status(self.status)  # the second adds a Date
        for name, value in self.headers.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        if self.handler.command == "HEAD":
            return
        self.handler.wfile.write(self.body if self.sent_bytes is None else self.body[: self.sent_bytes])
        if self.sent_bytes is not None:
            self.handler.close_connection = True

    def become(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Be another answer altogether."""
        self.status, self.body = status, body
        self.headers = {"Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}


Script = Callable[[Request, Answer], None]


class ScriptedServer:
    """Context manager: `with ScriptedServer(data, script) as server: server.url`."""

    def __init__(
        self,
        data: bytes,
        script: Script | None = None,
        *,
        with_tls: bool = False,
        demands_certificate: bool = False,
        certificate: Callable[[trustme.CA], trustme.LeafCert] | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.data = data
        self.etag = '"v1"'
        self.script = script
        self.requests: list[Request] = []
        self.answers_head = False  # like a GET, without the body
        self.stopping = threading.Event()  # a script that stalls waits on it, so that no test leaves a thread
        self._lock = threading.Lock()
        self.authority = trustme.CA() if with_tls or demands_certificate else None
        self.demands_certificate = demands_certificate  # of the same authority
        self.before_handshake: Callable[[], bool] = lambda: False  # True resets the connection
        self._server = self._made_server(address, certificate)
        self._served = served(self._server)

    @property
    def url(self) -> str:
        """URL of the object."""
        scheme = "http" if self.authority is None else "https"
        return f"{scheme}://{self._server.server_address[0]}:{self.port}/object"

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def __enter__(self) -> ScriptedServer:
        self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._served.__exit__(None, None, None)

    def _record(self, handler: BaseHTTPRequestHandler) -> Request:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(self.data))
        with self._lock:
            request = Request(len(self.requests), handler.path, begin, end, headers)
            self.requests.append(request)
        return request

    def _answer(self, handler: BaseHTTPRequestHandler, request: Request) -> Answer:
        body = self.data[request.begin : request.end]
        headers = {
            "Content-Length": str(len(body)),
            "Content-Range": f"bytes {request.begin}-{request.end - 1}/{len(self.data)}",
            "ETag": self.etag,
            "x-amz-request-id": f"R{request.number}",
        }
        return Answer(handler, 206, headers, body)

    def _made_server(
        self, address: tuple[str, int], certificate: Callable[[trustme.CA], trustme.LeafCert] | None
    ) -> ThreadingHTTPServer:
        if self.authority is None:
            return ThreadingHTTPServer(address, self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown = certificate(self.authority) if certificate else self.authority.issue_cert("127.0.0.1")
        shown.configure_cert(context)
        if self.demands_certificate:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
            # Under TLS 1.3 the refusal comes behind the handshake, and may be lost with the connection.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        outer = self

        class SecureServer(ThreadingHTTPServer):
            def get_request(self) -> tuple[socket.socket, object]:
                connection, client = super().get_request()
                if outer.before_handshake():
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    connection.close()
                    raise ConnectionResetError("by the test")  # socketserver goes on with the next
                return context.wrap_socket(connection, server_side=True), client

        return SecureServer(address, self._handler())

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805  `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True  # 40 ms less for each answer

            def do_GET(self) -> None:
                request = outer._record(self)
                answer = outer._answer(self, request)
                if outer.script is not None:
                    outer.script(request, answer)
                try:
                    answer.send()
                except OSError:  # the client has left
                    self.close_connection = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def do_HEAD(self) -> None:
                if outer.answers_head:
                    self.do_GET()
                else:
                    self.send_error(501)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler
