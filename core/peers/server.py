"""The server that a peer is: it gives the bytes of its cache to other machines that have the token.

HTTP/1.1 on one port, with TLS if peers have certificates. ``POST /v1/held`` names ranges of objects; the answer is the
CRC32C of each range that the cache holds. ``GET /v1/objects/NAME`` returns a range of one object. `core/peers/names.py`
defines the names.

Guarantees: without the token nothing is said, not even whether an object is there; nothing is written; at most
`MOST_CONNECTIONS` are served at a time, and if there are more, those go first that have not shown the token; a
connection that says nothing for `IDLE_S`, or needs longer for a request, is closed; all threads have names, and `close`
joins them. What a client gets may still be damaged: it compares the CRC32C, and never believes a peer without.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any

from streamer.core.conditions import Event
from streamer.core.errors import OptionError, StorageError
from streamer.core.peers.discovery import joined_address
from streamer.core.peers.held import HeldObjects, Loads, checked
from streamer.core.peers.names import TlsFiles, is_token, tls_files, zone

if TYPE_CHECKING:
    import ssl

MOST_CONNECTIONS = 1024  # each has a thread, which mostly waits in the kernel
MOST_QUESTION_BYTES = 16 << 20  # half a million ranges
IDLE_S = 5.0  # clients keep connections for their next load, and others may wait for this one's place
CHUNK_BYTES = 4 << 20  # given to the kernel at a time; less if the rate is limited
HELD, OBJECTS = "/v1/held", "/v1/objects/"
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")


class PeerServer:
    """Serves the cache in a folder until it is closed.

    Args:
        cache_dir: The folder; it need not exist yet.
        host: Address to listen on; "" for all, of IPv4 and IPv6.
        port: Port to listen on; 0 for any that is free.
        token: What clients must send; `streamer.core.peers.names.token_of` reads it.
        max_bytes_per_second: Maximum rate of all answers together; 0 for none.
    """

    def __init__(
        self, cache_dir: str, host: str = "", port: int = 0, token: str = "", max_bytes_per_second: int = 0
    ) -> None:
        if not token:
            raise ValueError("a peer without a token would serve anybody")
        self.tls = tls_files()
        if self.tls is not None:
            _server_context(self.tls)  # raises if a file is wrong
        self.token, self.rate, self.sent_bytes = token, _Rate(max_bytes_per_second), 0
        self.name = secrets.token_hex(8)  # the same in all answers of this server, and in no other's
        self._cache_dir, self._held = cache_dir, HeldObjects(cache_dir, token)
        self.loads = Loads(self.name)
        self._listener = _listener(host, port)
        self._host, self.port = self._listener.getsockname()[:2]  # a closed one has none
        self.closing = Event()
        self._slots = Semaphore(MOST_CONNECTIONS)
        self._lock = Lock()
        self._connections: dict[socket.socket, Thread] = {}
        self._strangers: dict[socket.socket, None] = {}  # those that have not shown the token, the oldest first
        self._acceptor = Thread(target=self._accept, name="streamer-peers", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``; the host is this machine's name if it listens on all addresses."""
        is_any = self._host in ("::", "0.0.0.0")  # noqa: S104 (compared)
        return joined_address(socket.gethostname() if is_any else self._host, self.port)

    def close(self) -> None:
        """Stop serving and join every thread; answers under way are cut."""
        if self.closing.is_set():
            return
        self.closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._slots.release()  # ends the wait for one
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            threads = list(self._connections.items())
        for connection, _ in threads:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # as in `_dismiss`
        for _, thread in threads:
            thread.join()

    def held(self, question: Any) -> dict[str, Any]:
        """Answer which ranges are there, a list of CRC32C for each object, and which loads read these objects now."""
        asked, load = checked(question)
        if load is not None:
            self.loads.note(load)
        names, claims = self.loads.of(asked, load and load.name)
        objects = {name: self._held.answer(name, ranges, claims) for name, ranges in asked.items()}
        return {"objects": objects, "loads": [*names], "zone": zone()}

    def use_token(self, token: str) -> None:
        """Serve those that have this token from now on."""
        if token != self.token:
            self._held, self.token = HeldObjects(self._cache_dir, token), token

    def opened(self, name: str) -> tuple[Any, int] | None:
        """Open the file of an object, and return it with its size; None if there is no such object."""
        return self._held.opened(name)

    def note_sent(self, size_bytes: int) -> None:
        """Count bytes that were sent."""
        with self._lock:
            self.sent_bytes += size_bytes

    def trust(self, connection: socket.socket) -> None:
        """Note that a client has the token, so its connection is not closed for another's."""
        with self._lock:
            self._strangers.pop(connection, None)

    def _accept(self) -> None:
        while not self.closing.is_set():
            try:
                connection = self._secured(self._listener.accept()[0])
            except (OSError, OptionError):  # closed, short of descriptors, or without a certificate now
                self.closing.wait(0.05)
                continue
            if not self._slots.acquire(blocking=False):
                self._dismiss()
                self._slots.acquire()
            thread = Thread(target=self._serve, args=(connection,), name="streamer-serve", daemon=True)
            with self._lock:
                self._connections[connection] = thread
                self._strangers[connection] = None
            try:
                thread.start()
            except RuntimeError:  # the system gives no thread
                self._drop(connection)

    def _secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection with TLS, if peers have it; its first read does the handshake."""
        if self.tls is None:
            return connection
        with connection:  # whose socket the other one takes
            return _server_context(self.tls).wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _dismiss(self) -> None:
        """End the oldest connection of a client that has not shown the token, to make room."""
        with self._lock, suppress(OSError):
            oldest = next(iter(self._strangers), None)
            if oldest is not None:
                del self._strangers[oldest]
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # not that of TLS, which is its thread's

    def _serve(self, connection: socket.socket) -> None:
        try:
            if not self.closing.is_set():
                with suppress(OSError):  # the client has gone, or says nothing
                    _Handler(connection, None, self)  # type: ignore[arg-type]  # it needs no address, and no socketserver
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)
            self._strangers.pop(connection, None)
        connection.close()
        self._slots.release()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "streamer", ""
    timeout = IDLE_S
    disable_nagle_algorithm = True
    server: PeerServer  # type: ignore[assignment]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._requests = _Requests(self.connection)
        self.rfile = io.BufferedReader(self._requests)

    def handle_one_request(self) -> None:
        self._requests.until = None
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a fleet that loads asks a thousand times a second."""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self._is_allowed():
            return
        if self.path != HELD or not (length.isascii() and length.isdigit()):
            self._refuse(404 if self.path != HELD else 411)
        elif len(length) > 9 or int(length) > MOST_QUESTION_BYTES:
            self._refuse(413)
        else:
            try:
                answer = self.server.held(json.loads(self.rfile.read(int(length))))
            except (ValueError, RecursionError):
                self._refuse(400)
            else:
                self._answer(200, json.dumps(answer).encode())

    def do_GET(self) -> None:
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


class _Rate:
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


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    from streamer.core.peers.tls import context_of  # noqa: PLC0415 (imports ssl)

    return context_of(files, is_server=True)


def _listener(host: str, port: int) -> socket.socket:
    """Listen; without a host, on all addresses of both kinds."""
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        where = joined_address(host or "*", port)
        hint = "Name another port, or end the process that has it"
        raise StorageError(f"no peer can listen on {where}: {error.strerror or error}", hint=hint) from error
