"""What Azurite lacks of Azure, put in front of it: a CRC64 with each range that asks for one.

The gate is ours, so it proves that client and gate agree; its rules are those of Azure's documentation of Get Blob
(https://learn.microsoft.com/rest/api/storageservices/get-blob). That the checksum itself is Azure's is shown by a value
that Azure answered (``native/http/answer_checksum_test.cc``).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers.azurite import AzuriteServer
from servers.background import served
from streamer import _native

MAX_RANGE_BYTES = 4 << 20
ASKS = "x-ms-range-get-content-crc64"
KEPT_FOR_THE_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass(frozen=True)
class Seen:
    """A request, as the gate saw it: its headers in lower case, and what Azurite answered."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    size_bytes: int

    @property
    def asks_for_crc64(self) -> bool:
        return self.headers.get(ASKS) == "true"


class AzureGate:
    """Context manager around the gate to one Azurite.

    Attributes:
        seen: Every request.
        spoil: Given a request and the body of its answer, gives what is sent in its place; the checksum stays.
    """

    def __init__(self, azurite: AzuriteServer) -> None:
        self.seen: list[Seen] = []
        self.spoil: Callable[[Seen, bytes], bytes] = lambda seen, body: body
        self._azurite = azurite
        self._authority = azurite.host.partition("/")[0]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._served = served(self._server)

    def __enter__(self) -> AzureGate:
        self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._served.__exit__(None, None, None)

    def storage_options(self) -> dict[str, str]:
        """Return the options under which adlfs reaches Azurite through the gate."""
        here = f"127.0.0.1:{self._server.server_port}"
        return {"connection_string": self._azurite.connection_string.replace(self._authority, here)}

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        onward = HTTPConnection(self._authority, timeout=30)
        passed_on = {name: value for name, value in handler.headers.items() if name.lower() != ASKS}  # refused there
        onward.request(handler.command, handler.path, headers=passed_on)
        answer = onward.getresponse()
        body = answer.read()
        onward.close()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        seen = Seen(handler.command, handler.path, headers, answer.status, len(body))
        self.seen.append(seen)
        status, reported = answer.status, [(k, v) for k, v in answer.getheaders() if k.lower() not in KEPT_FOR_THE_HOP]
        if seen.asks_for_crc64 and status == 206 and len(body) > MAX_RANGE_BYTES:
            status, reported, body = 400, [("x-ms-error-code", "InvalidHeaderValue")], b""
        elif seen.asks_for_crc64 and status == 206:
            crc = _native.crc("crc64nvme", body).to_bytes(8, "little")
            reported.append(("x-ms-content-crc64", base64.b64encode(crc).decode()))
            body = self.spoil(seen, body)
        size = len(body) if handler.command != "HEAD" else int(answer.headers.get("Content-Length", 0))
        handler.send_response(status)
        for name, value in [*reported, ("Content-Length", str(size))]:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805  `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    outer._answer(self)
                except OSError:  # the client has left
                    self.close_connection = True

            do_HEAD = do_GET  # noqa: N815  http.server's name

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler
