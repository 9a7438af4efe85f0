"""The answers on one connection of a server of peers, and how fast all of them are sent together."""

from __future__ import annotations

import io
import json
import os
import re
import time
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import TYPE_CHECKING, Any

from streamer.core.conditions import Event
from streamer.core.peers.discovery import is_local
from streamer.core.peers.names import is_token

if TYPE_CHECKING:
    import socket

    from streamer.core.peers.server import PeerServer

MOST_QUESTION_BYTES = 16 << 20  # half a million ranges
IDLE_S = 5.0  # clients keep connections for their next load, and others may wait for this one's place
CHUNK_BYTES = 4 << 20  # given to the kernel at a time; less if the rate is limited
HELD, OBJECTS = "/v1/held", "/v1/objects/"
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")


class Answers(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "streamer", ""
    timeout = IDLE_S
    disable_nagle_algorithm = True
    server: PeerServer  # type: ignore[assignment]

    def setup(self) -> None:
        """Read requests with their time limits."""
        super().setup()
        self.rfile.close()
        self._requests = _Requests(self.connection)
        self.rfile = io.BufferedReader(self._requests)

    def handle_one_request(self) -> None:
        """Wait for the next one as long as a connection may be idle."""
        self._requests.until = None
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a fleet that loads asks a thousand times a second."""

    def do_POST(self) -> None:
        """Answer what is held."""
        length = self.headers.get("Content-Length", "")
        if not self._is_allowed():
            return
        if self.path != HELD or not (length.isascii() and length.isdigit()):
            self._refuse(404 if self.path != HELD else 411)
        elif len(length) > 9 or int(length) > MOST_QUESTION_BYTES:
            self._refuse(413)
        else:
            try:
                question = json.loads(self.rfile.read(int(length)))
                answer = self.server.held(question, is_local=is_local(self.connection.getpeername()[0]))
            except (ValueError, RecursionError):
                self._refuse(400)
            else:
                self._answer(200, json.dumps(answer).encode())

    def do_GET(self) -> None:
        """Give a range of an object."""
        if not self._is_allowed():
            return
        found = self.server.opened(self.path.removeprefix(OBJECTS)) if self.path.startswith(OBJECTS) else None
        if found is None:
            self._answer(404)
            return
        file, size = found
        with file:
            asked = _RANGE.fullmatch(self.headers.get("Range", ""))
            begin, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, 0)
            if begin < end <= size:
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
                self.send_header("Content-Length", str(end - begin))
                self.end_headers()
                self._send(file, begin, end)
            else:
                self._answer(416)

    def _send(self, file: Any, begin: int, end: int) -> None:
        rate = self.server.rate
        while begin < end:
            size = min(end - begin, CHUNK_BYTES, rate.chunk_bytes)
            if not rate.wait_for(size, self.server.closing) or self._send_some(file, begin, size) != size:
                self.close_connection = True  # what was announced does not come
                return
            self.server.note_sent(size)
            begin += size

    def _send_some(self, file: Any, begin: int, size: int) -> int:
        if self.server.tls is None:
            sent: int = self.connection.sendfile(file, begin, size)
            return sent
        data = os.pread(file.fileno(), size, begin)  # `sendfile` would encrypt 8 KiB at a time
        self.connection.sendall(data)
        return len(data)

    def _is_allowed(self) -> bool:
        if is_token(self.headers.get("Authorization", ""), self.server.token):
            self.server.trust(self.connection)
            self._requests.until = time.monotonic() + IDLE_S  # for the body
            return True
        self._refuse(401)
        return False

    def send_error(self, code: int, *_: Any) -> None:
        """Say of what is no request no more than of one without the token."""
        self._refuse(code)

    def handle_expect_100(self) -> bool:
        """Say nothing before the token was seen."""
        return True

    def _refuse(self, status: int) -> None:
        """Answer, and close the connection: the body of the request was not read."""
        self.close_connection = True
        self._answer(status)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class _Requests(io.RawIOBase):
    """What a client sends. A request must be there `IDLE_S` after its first byte, however slowly it comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.until: float | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = IDLE_S if self.until is None else self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        try:
            size = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(IDLE_S)  # for answers
        self.until = self.until or time.monotonic() + IDLE_S
        return size


class Rate:
    """Spreads what is sent over time."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second, self._free_at, self._lock = bytes_per_second, 0.0, Lock()
        self.chunk_bytes = max(1, bytes_per_second // 16) if bytes_per_second else CHUNK_BYTES

    def wait_for(self, size_bytes: int, closing: Event) -> bool:
        """Wait until so much may be sent; False if the server closes meanwhile."""
        if not self._bytes_per_second:
            return not closing.is_set()
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size_bytes / self._bytes_per_second
        return not closing.wait(max(0.0, begin - time.monotonic()))
