"""The answer under way: right until a fault changes it."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler

CHUNK_BYTES = 64 << 10


class Answer:
    """One answer to a ranged GET.

    Attributes:
        data: The whole object.
        begin: First byte of the range.
        end: Byte after its last.
        status: Status to be sent.
        headers: Headers to be sent.
        body: Body to be sent.
        request_headers: What the client sent, names in lower case.
    """

    def __init__(
        self,
        handler: BaseHTTPRequestHandler,
        data: bytes,
        asked: tuple[int, int] | None,
        etag: str,
        stopping: threading.Event,
    ) -> None:
        self._handler, self._stopping = handler, stopping
        self.data = data
        self.request_headers = {name.lower(): value for name, value in handler.headers.items()}
        self.begin, self.end = asked or (0, len(data))
        self.status = 200 if asked is None else 206
        self.body = data[self.begin : self.end]
        self.headers = {
            "Content-Length": str(len(self.body)),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": etag,
        }
        if asked is not None:
            self.take_range()

    @property
    def socket(self) -> socket.socket:
        """The connection."""
        return self._handler.connection

    def take_range(self) -> None:
        """Be the answer for `begin` to `end`."""
        self.body = self.data[self.begin : self.end]
        self.headers["Content-Length"] = str(len(self.body))
        self.headers["Content-Range"] = f"bytes {self.begin}-{self.end - 1}/{len(self.data)}"

    def become(self, status: int, body: bytes, *, keeps_headers: bool = False) -> bool:
        """Be another answer altogether; False, so that a fault can return it and have it sent."""
        self.status, self.body = status, body
        etag = {"ETag": self.headers["ETag"]} if keeps_headers else {}
        self.headers = {"Content-Length": str(len(body)), "x-amz-request-id": "FAULT", **etag}
        return False

    def send(self, body_bytes: int | None = None, bytes_per_s: float | None = None, *, then_close: bool = True) -> bool:
        """Send it: all, or only so many bytes of the body; True, so that a fault can return it."""
        self._handler.send_response(self.status)
        for name, value in self.headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()
        body = self.body if body_bytes is None else self.body[:body_bytes]
        for start in range(0, len(body), CHUNK_BYTES):
            chunk = body[start : start + CHUNK_BYTES]
            self._handler.wfile.write(chunk)
            if bytes_per_s is not None:
                self.sleep(len(chunk) / bytes_per_s)
        if body_bytes is not None and then_close:
            self.close()
        return True

    def sleep(self, seconds: float) -> None:
        """Wait, unless the server stops."""
        self._stopping.wait(seconds)

    def wait_for_end(self) -> None:
        """Wait until the client gives up or the server stops; the connection is useless afterwards."""
        self._handler.close_connection = True
        self.socket.settimeout(0.05)
        while not self._stopping.is_set():
            try:
                if self.socket.recv(1) == b"":
                    return
            except TimeoutError:
                time.sleep(0)
            except OSError:
                return

    def close(self) -> None:
        """Close the connection now."""
        self._handler.close_connection = True
        self._handler.wfile.flush()
        self.socket.close()
