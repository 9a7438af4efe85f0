"""Requests and answers of `servers.last_words`, whatever the protocol: objects, words, ranges and conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from servers.last_words import LastWords

__all__ = ["Answering", "Stored", "Upload", "Word"]

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
ERROR = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>no</Message></Error>"


@dataclass
class Stored:
    """An object."""

    data: bytes
    metadata: dict[str, str]
    version: str
    hidden_looks: int = 0  # for so many looks, the object before it is seen
    before: Stored | None = None


@dataclass
class Word:
    """What the last request of an object does.

    Attributes:
        name: Part of the object's name.
        stored: ``all``, ``half``, ``nothing``, ``another``, ``unmarked`` or ``late``.
        answer: ``usual``, ``empty``, ``braces``, ``page``, ``error`` (all with status 200), or a status.
        has_version: Whether the usual answer names the version.
    """

    name: str
    stored: str
    answer: str | int
    has_version: bool = True


@dataclass
class Upload:
    name: str
    metadata: dict[str, str]
    condition: str | None
    parts: dict[int, bytes] = field(default_factory=dict)


class Answering(BaseHTTPRequestHandler):
    """Reads a request, and has the answers of all protocols; `answer` is that of one request."""

    protocol_version = "HTTP/1.1"
    words: LastWords

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer any request."""
        parts = urlsplit(self.path)
        self.name = unquote(parts.path).lstrip("/")
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 (the base class's names)

    def answer(self) -> None:
        """Answer the request."""
        raise NotImplementedError

    def _reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-").replace("~", "_"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _finish(self, word: Word | None, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the last request of an object, as the word says."""
        answer = word.answer if word else "usual"
        if answer == "usual":
            self._reply(status, body, **headers)
        else:
            self._odd(answer)

    def _odd(self, answer: str | int) -> None:
        """Answer as a proxy does: with a status, or with 200 and some other body."""
        if isinstance(answer, int):
            return self._reply(answer)
        text = {"empty": b"", "braces": b"{}", "page": PAGE, "error": ERROR}[answer]
        return self._reply(200, text, Content_Type="text/html" if answer == "page" else "application/xml")

    def _data(self, found: Stored, **headers: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("x-ms-range") or self.headers.get("Range") or "")
        if self.command == "HEAD":
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-").replace("~", "_"), value)
            self.send_header("Content-Length", str(len(found.data)))
            return self.end_headers()
        if asked is None:
            return self._reply(200, found.data, **headers)
        begin, end = int(asked[1]), min(int(asked[2] or 1 << 60) + 1, len(found.data))
        if begin >= len(found.data):
            return self._reply(416, Content_Range=f"bytes */{len(found.data)}")
        span = f"bytes {begin}-{end - 1}/{len(found.data)}"
        return self._reply(206, found.data[begin:end], Content_Range=span, **headers)

    def _is_refused(self) -> bool:
        there = self.words.objects.get(self.name)
        if self.headers.get("If-None-Match") == "*":
            return there is not None
        wanted = self.headers.get("If-Match")
        return wanted is not None and (there is None or f'"{there.version}"' != wanted)

    def _below(self, prefix: str) -> list[tuple[str, Stored]]:
        return [(name, each) for name, each in sorted(self.words.objects.items()) if name.startswith(prefix)]
