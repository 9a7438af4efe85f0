"""A proxy that refuses: it makes no tunnel, and passes no request on."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["refusing_proxy"]


def refusing_proxy(status: int) -> ThreadingHTTPServer:
    """Make a proxy that answers whatever it is asked with this status; `servers.background.served` runs it."""

    class Refusing(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = do_POST = do_CONNECT  # noqa: N815 (the base class's names)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
