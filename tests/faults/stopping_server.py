"""A server that stops at one kind of request, and stays there."""

from __future__ import annotations

import io
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from faults.server import FaultServer

HOLD_S = 60.0  # longer than any test waits


class StoppingServer(FaultServer):
    """Serves a folder, but for one kind of request: ``list``, ``head``, ``index``, ``header`` or ``data``."""

    def __init__(self, folder: Path, at: str, how: str, after: int = 0) -> None:
        super().__init__(folder)
        self.at, self.how, self.after = at, how, after
        self.reached = threading.Event()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer as ever, or stop."""
        if _kind_of(handler) != self.at:
            super().answer(handler)
            return
        self.after -= 1
        if self.after >= 0:
            super().answer(handler)
            return
        getattr(self, self.how)(handler)

    def silence(self, handler: BaseHTTPRequestHandler) -> None:
        """Say nothing."""
        self.reached.set()
        self._stopping.wait(HOLD_S)
        handler.close_connection = True

    def half(self, handler: BaseHTTPRequestHandler) -> None:
        """Send half of the right answer, and nothing more."""
        connection, handler.wfile = handler.wfile, io.BytesIO()  # type: ignore[assignment]
        super().answer(handler)
        whole, handler.wfile = handler.wfile.getvalue(), connection  # type: ignore[attr-defined]
        connection.write(whole[: len(whole) // 2])
        connection.flush()
        self.silence(handler)

    def failure(self, handler: BaseHTTPRequestHandler) -> None:
        """Fail, and ask to be left alone for a minute."""
        self._refuse(handler, 500, b"")
        self.reached.set()

    def throttle(self, handler: BaseHTTPRequestHandler) -> None:
        """Ask for patience of a minute."""
        self._refuse(handler, 503, b"")
        self.reached.set()

    def expire(self, handler: BaseHTTPRequestHandler) -> None:
        """Call the signature expired; whoever asks for a new one waits."""
        self.at, self.how = "head", "silence"
        self._refuse(handler, 403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Retry-After", "60")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def _kind_of(handler: BaseHTTPRequestHandler) -> str:
    if handler.command == "HEAD":
        return "head"
    if "list-type=2" in handler.path:
        return "list"
    if ".index.json" in handler.path:
        return "index"
    return "header" if (handler.headers.get("Range") or "").startswith("bytes=0-") else "data"
