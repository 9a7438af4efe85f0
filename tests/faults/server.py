"""Serves a folder as an S3 bucket would, with faults drawn from a script; every request is counted.

Paths are ``/bucket/key``: the folder's own name is the bucket. GET and HEAD of objects, and ListObjectsV2, which has no
faults. Signatures are not checked: this server is for what goes wrong, not for what is right.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from faults.answer import Answer
from faults.catalogue import FAULTS, Fault
from faults.checksums import attributes_of, headers_of

RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
POLL_S = 0.05  # between two looks at whether to stop


class Asked(NamedTuple):
    """A GET of object bytes: its number, from 0, the object's path, the first byte and the one behind the last."""

    number: int
    path: str
    begin: int
    end: int


# Says what goes wrong with a request.
Script = Callable[[Asked], "Fault | None"]


class FaultServer:
    """Context manager: ``with FaultServer(folder, script) as server: server.url("model")``.

    Args:
        folder: What to serve; read into memory.
        script: Which request meets which fault; None: none does.
        port: Where to listen on 127.0.0.1; 0 chooses a free port.

    Attributes:
        requests: GETs of object bytes so far.
        faults: How often each fault was made.
        part_bytes: Tell checksums as after a multipart upload with parts of this size; None: of the whole.
        expired: Requests refused because their signature had expired.
    """

    def __init__(self, folder: Path, script: Script | None = None, port: int = 0) -> None:
        self.script = script
        self.part_bytes: int | None = None
        self.requests = self.expired = 0
        self._expiry: str | None = None
        self.faults: Counter[str] = Counter()
        self._bucket = folder.name
        self._objects = {
            f"/{folder.name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        self._etags = {key: f'"{hashlib.md5(data).hexdigest()}"' for key, data in self._objects.items()}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", port), self._handler())

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    @property
    def endpoint_url(self) -> str:
        """Where an S3 client finds it."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, key: str = "") -> str:
        """``s3://`` URL of a key or prefix."""
        return f"s3://{self._bucket}/{key}".rstrip("/")

    def storage_options(self, port: int | None = None) -> dict[str, object]:
        """Options for s3fs, to reach it at a port before it if one is given; the keys are not checked."""
        endpoint_url = f"http://127.0.0.1:{port or self.port}"
        return {"key": "any", "secret": "any", "endpoint_url": endpoint_url}

    def expire_signatures(self) -> None:
        """Refuse whatever was signed until the end of this second: signatures tell no more of their time."""
        self._expiry = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="faults", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        faults = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                faults.answer(self)

            do_HEAD = do_GET  # noqa: N815 (the base class's name)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base class's name)
                """Say nothing."""

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        url = urlsplit(handler.path)
        data = self._objects.get(unquote(url.path))
        if handler.command == "GET" and "list-type=2" in url.query:
            self._list(handler, parse_qs(url.query))
        elif data is None:
            _send(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        elif "attributes" in url.query.split("&") and self.part_bytes is not None:
            after = int(handler.headers.get("x-amz-part-number-marker", "0"))
            _send(handler, 200, attributes_of(data, self.part_bytes, after), {"Content-Type": "application/xml"})
        elif handler.command == "HEAD":
            etag = {"ETag": self._etags[unquote(url.path)], "Content-Length": str(len(data))}
            asks = handler.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
            _send(handler, 200, b"", {**etag, **(headers_of(data, self.part_bytes) if asks else {})})
        else:
            self._give(handler, unquote(url.path), data)

    def _give(self, handler: BaseHTTPRequestHandler, path: str, data: bytes) -> None:
        asked = _range_of(handler.headers.get("Range"), len(data))
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
            begin, end = asked or (0, len(data))
            fault = self.script(Asked(number, path, begin, end)) if self.script is not None else None
            if self._expiry is not None and _signed_at(handler) <= self._expiry:
                fault, self.expired = FAULTS["expired_signature"], self.expired + 1
            elif fault is not None:
                self.faults[fault.name] += 1
        answer = Answer(handler, data, asked, self._etags[path], self._stopping)
        try:
            if fault is None or not fault.change(answer):
                answer.send()
        except OSError:  # the client went away
            handler.close_connection = True

    def _list(self, handler: BaseHTTPRequestHandler, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        entries = []
        for path, data in self._objects.items():
            key = path.split("/", 2)[2]
            if key.startswith(prefix) and "/" not in key[len(prefix) :]:
                entries.append(
                    f"<Contents><Key>{escape(quote(key))}</Key><Size>{len(data)}</Size>"
                    f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{escape(self._etags[path])}</ETag>"
                    "</Contents>"
                )
        text = (
            f"<ListBucketResult><Name>{self._bucket}</Name><EncodingType>url</EncodingType>"
            f"<IsTruncated>false</IsTruncated><KeyCount>{len(entries)}</KeyCount>{''.join(entries)}</ListBucketResult>"
        )
        _send(handler, 200, text.encode(), {"Content-Type": "application/xml"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that leaves is no news here."""

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        """Close, also what a fault has closed already."""
        with suppress(OSError):
            super().shutdown_request(request)


def _range_of(header: str | None, size: int) -> tuple[int, int] | None:
    match = RANGE.match(header or "")
    if match is None:
        return None
    return int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)


def _signed_at(handler: BaseHTTPRequestHandler) -> str:
    """When a request was signed, in AWS's form, which sorts as time does."""
    given = parse_qs(urlsplit(handler.path).query).get("X-Amz-Date")
    return given[0] if given else handler.headers.get("x-amz-date", "")


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)
