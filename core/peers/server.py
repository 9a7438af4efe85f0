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

import resource
import socket
import time
from contextlib import suppress
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any

from streamer.core.conditions import Event
from streamer.core.errors import OptionError, StorageError
from streamer.core.peers.answers import Answers, Rate
from streamer.core.peers.discovery import is_local, joined_address
from streamer.core.peers.held import COMING, LONGEST_ANSWER_S, HeldObjects, Loads, checked
from streamer.core.peers.names import TlsFiles, tls_files, zone

if TYPE_CHECKING:
    import ssl

FLOOD_S = 0.005  # between two connections of strangers if there are many: loads need the processor, too
MOST_CONNECTIONS = 1024  # each has a thread, which mostly waits in the kernel; fewer if descriptors are few


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
        self.token, self.rate, self.sent_bytes = token, Rate(max_bytes_per_second), 0
        self._cache_dir, self._held = cache_dir, HeldObjects(cache_dir, token)
        self.loads = Loads()
        self._listener = _listener(host, port)
        self._host, self.port = self._listener.getsockname()[:2]  # a closed one has none
        self.closing = Event()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_limited = descriptors != resource.RLIM_INFINITY
        self.places = min(MOST_CONNECTIONS, max(16, descriptors // 4)) if is_limited else MOST_CONNECTIONS
        self._slots = Semaphore(self.places)
        self._lock = Lock()
        self._connections: dict[socket.socket, Thread] = {}
        self._strangers: dict[socket.socket, None] = {}  # those that have not shown the token, the oldest first
        self._acceptor = Thread(target=self._accept, name="streamer-peers", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``; the host is this machine's name if it listens on all addresses."""
        return self._address(socket.gethostname())

    @property
    def local_address(self) -> str:
        """Where processes of this machine reach it."""
        return self._address("127.0.0.1" if is_local("127.0.0.1") else "::1")

    def _address(self, name: str) -> str:
        """Return host and port. If the server listens on all addresses of the machine, the host is the given name."""
        is_any = self._host in ("::", "0.0.0.0")  # noqa: S104 (compared)
        return joined_address(name if is_any else self._host, self.port)

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

    def held(self, question: Any, *, is_local: bool = False) -> dict[str, Any]:
        """Answer which ranges are there, a list of CRC32C for each object, and which loads read these objects now."""
        asked, load = checked(question)
        if load is not None:  # of other machines, the server there knows what they read
            self.loads.note(load if is_local else load._replace(claims={name: set() for name in load.claims}))
        names, claims = self.loads.of(asked, load and load.name)
        until, objects = time.thread_time() + LONGEST_ANSWER_S, dict[str, list[int | None]]()
        for name, ranges in asked.items():
            read = [each[name] for each in claims if name in each]
            coming = [COMING if any(each in ranges for ranges in read) else None for each in ranges]
            crcs = self._held.checksums(name, ranges, until)
            objects[name] = [instead if crc is None else crc for crc, instead in zip(crcs, coming, strict=True)]
        return {"objects": objects, "loads": [*names], "zone": zone(), "folder": self._held.folder}

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
            elif len(self._strangers) >= self.places // 4:
                self._dismiss()
                self.closing.wait(FLOOD_S)
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
                    Answers(connection, None, self)  # type: ignore[arg-type]  # it needs no address, and no socketserver
        finally:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)
            self._strangers.pop(connection, None)
        connection.close()
        self._slots.release()


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
