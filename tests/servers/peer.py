"""A peer that says it holds everything, and then gives it as a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from servers.background import served
from streamer import _native


class Peer(ThreadingHTTPServer):
    """Says that it holds everything, and then gives it as a test wants."""

    request_queue_size = 128

    def __init__(self, give, data, crc_of=lambda data: _native.crc("crc32c", data)) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.give, self.data, self.crc_of, self.given, self.ended = give, data, crc_of, 0, threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_) -> None:
        """Clients go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["objects"]
        crcs = {
            name: [self.server.crc_of(self.server.data[begin:end]) for begin, end in each]
            for name, each in asked.items()
        }
        body = json.dumps({"objects": crcs}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        begin, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.server.given += 1
        self.close_connection = True
        self.server.give(self, begin, last + 1)

    def head(self, begin: int, end: int, status: int = 206, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(self.server.data)}")
        self.send_header("Content-Length", str(end - begin if length is None else length))
        self.end_headers()


@contextlib.contextmanager
def peer_that(give, data, **how):
    peer = Peer(give, data, **how)
    with served(peer):
        try:
            yield peer
        finally:
            peer.ended.set()
