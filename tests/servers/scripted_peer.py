"""A peer on loopback that says that it holds all of one object, and gives it as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers.background import served
from streamer import _native

__all__ = ["Giving", "ScriptedPeer", "giving", "peer_that"]


def _crc32c(data: bytes) -> Any:
    return _native.crc("crc32c", data)


class ScriptedPeer(ThreadingHTTPServer):
    """The server; `data` is what it says that it holds."""

    request_queue_size = 128

    def __init__(self, data: bytes, give: Callable[[Giving, int, int], None], crc_of: Callable[[bytes], Any]) -> None:
        super().__init__(("127.0.0.1", 0), Giving)
        self.data, self.give, self.crc_of, self.ended = data, give, crc_of, threading.Event()
        self.asked = self.given = 0
        self.say: Callable[[Giving], None] | None = None  # in place of what it holds

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Clients go away."""


class Giving(BaseHTTPRequestHandler):
    """One connection of a load."""

    protocol_version = "HTTP/1.1"
    server: ScriptedPeer

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        peer, asked = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))["objects"]
        peer.asked += 1
        if peer.say is not None:
            self.close_connection = True
            peer.say(self)
            return
        crcs = {name: [peer.crc_of(peer.data[begin:end]) for begin, end in each] for name, each in asked.items()}
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
        """Send the head of an answer."""
        self.send_response(status)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(self.server.data)}")
        self.send_header("Content-Length", str(end - begin if length is None else length))
        self.end_headers()


def giving(peer: Giving, begin: int, end: int) -> None:
    """Give what it says that it holds."""
    peer.head(begin, end)
    peer.wfile.write(peer.server.data[begin:end])


@contextmanager
def peer_that(
    give: Callable[[Giving, int, int], None], data: bytes, crc_of: Callable[[bytes], Any] = _crc32c
) -> Iterator[ScriptedPeer]:
    """Serve inside the block."""
    peer = ScriptedPeer(data, give, crc_of)
    with served(peer):
        try:
            yield peer
        finally:
            peer.ended.set()
