"""A TCP proxy on loopback: the network between a client and a real server, as a test wants it.

It holds answers back, cuts and resets connections, goes away and comes back at the same port, refuses requests in the
server's place, paces answers, and counts. One thread does it all: once a call has returned, it is so.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from servers.kept_ports import KeptPorts
from servers.proxied_connection import ProxiedConnection

__all__ = ["TcpProxy", "http_requests", "rpc_calls", "uncounted"]

CALL_TIMEOUT_S = 10.0

# Counts whole requests in what a client has sent; gives their number and what is left of the next one.
Counts = Callable[[bytes], "tuple[int, bytes]"]


def rpc_calls(sent: bytes) -> tuple[int, bytes]:
    """Count calls of ONC RPC (RFC 5531), records of one fragment each."""
    count = 0
    while len(sent) >= 4 and len(sent) >= 4 + (size := int.from_bytes(sent[:4], "big") & 0x7FFFFFFF):
        sent, count = sent[4 + size :], count + 1
    return count, sent


def http_requests(sent: bytes) -> tuple[int, bytes]:
    """Count heads of HTTP requests, none of which has a body."""
    *whole, rest = sent.split(b"\r\n\r\n")
    return len(whole), rest


def uncounted(sent: bytes) -> tuple[int, bytes]:
    """Count nothing, where TLS hides the requests."""
    return 0, b""


class TcpProxy:
    """A context manager around one proxy.

    Args:
        server_port: Where the server is, on 127.0.0.1.
        counts: What a request is.
        port: Where to listen; None finds one.
        bytes_per_s: The pace of all answers together; None: none.

    Attributes:
        port: Where it listens, on 127.0.0.1 until it moves.
        connections: Connections taken so far.
        requests: Whole requests seen so far, those refused or reset included.
        passed_bytes: Bytes of answers passed on so far.
        turned_away: Requests refused and connections reset so far.
        resumed_at: When the first byte passed since the last `come_back` or `pass_on`, of the monotonic clock.
    """

    def __init__(
        self,
        server_port: int,
        counts: Counts = rpc_calls,
        *,
        port: int | None = None,
        bytes_per_s: float | None = None,
    ) -> None:
        self.server = ("127.0.0.1", server_port)
        self.counts, self.bytes_per_s = counts, bytes_per_s
        self._kept = KeptPorts(0 if port else 1)
        self.port = port or self._kept.numbers[0]
        self.connections = self.requests = self.passed_bytes = self.turned_away = 0
        self.is_holding = self.is_away = self.resets = False
        self.refusal: tuple[bytes, bytes] | None = None
        self.resumed_at: float | None = None
        self._address = "127.0.0.1"
        self._open: set[ProxiedConnection] = set()
        self._listener: socket.socket | None = None
        self._taking: set[asyncio.Task[None]] = set()  # the loop itself keeps no task alive
        self._changed = threading.Condition()
        self._hold_from: int | None = None
        self._mark: tuple[int, Callable[[], None]] | None = None
        self._free_at = 0.0
        self._is_over = False

    def __enter__(self) -> TcpProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._kept.close()

    # --- answers ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Pass on no answer until `release`; requests still go through."""
        self._do(self._hold())

    def hold_from(self, request: int) -> None:
        """Pass on no answer once that many requests have been seen in all, until `release`."""
        self._hold_from = request

    def release(self) -> None:
        """Pass on answers again, those held back first."""
        self._do(self._release())

    def wait_for_requests(self, count: int) -> None:
        """Wait until that many requests have been seen in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, timeout=30), self.requests

    def when_passed(self, count: int, then: Callable[[], None]) -> None:
        """Hold all answers once that many bytes of them were passed on, and call `then`, on the proxy's thread."""
        self._mark = (count, then)

    # --- outages: each ends what is held back ---------------------------------------------------------------------

    def cut(self) -> None:
        """Close every connection there is now."""
        self._do(self._each(ProxiedConnection.cut))

    def leave(self) -> None:
        """Refuse connections, and reset those there are, until `come_back`."""
        self._do(self._leave())

    def come_back(self, address: str | None = None) -> None:
        """Listen again, at the same port; at another address if one is given."""
        self._address, self.resumed_at = address or self._address, None
        self._do(self._listen())

    def reset(self) -> None:
        """Reset every connection now, and each later one when its first request comes, until `pass_on`."""
        self._do(self._reset())

    def refuse(self, head: bytes, body: bytes) -> None:
        """Return this answer to every HTTP request, until `pass_on`; those under way are answered by the server."""
        self._do(self._refuse(head, body))

    def pass_on(self) -> None:
        """Be a proxy again."""
        self.resets, self.refusal, self.resumed_at = False, None, None

    def settle(self) -> None:
        """Count the connections that clients made before this call: a busy machine lets them wait to be accepted."""
        self._do(self._settle())

    # --- of the connections ---------------------------------------------------------------------------------------

    def opened(self, connection: ProxiedConnection) -> None:
        """Take note of a connection."""
        self.connections += 1
        self._open.add(connection)

    def closed(self, connection: ProxiedConnection) -> None:
        """Forget a connection."""
        self._open.discard(connection)

    def saw_requests(self, count: int) -> None:
        """Count requests that just came."""
        with self._changed:
            self.requests += count
            self._changed.notify_all()
        if self._hold_from is not None and self.requests >= self._hold_from:
            self._hold_from = None
            self._hold_all()

    def passed(self, count: int) -> float:
        """Do what is due after these bytes, and say how long their connection has to wait for its next ones."""
        self.resumed_at = self.resumed_at or time.monotonic()
        if self._mark is not None and self.passed_bytes >= self._mark[0]:
            (_, then), self._mark = self._mark, None
            self._hold_all()
            then()
        if self.bytes_per_s is None:
            return 0.0
        self._free_at = max(self._free_at, self._loop.time()) + count / self.bytes_per_s
        return self._free_at - self._loop.time()

    # --- on the proxy's thread ------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _listen(self) -> None:
        assert self._listener is None
        if self._is_over:
            return
        self.is_away = False
        self._listener = socket.create_server((self._address, self.port), backlog=512)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    # asyncio's own servers leave connections open for good that they accepted as they were closed (gh-109564).
    def _accept(self, listener: socket.socket) -> None:
        try:
            while True:
                task = self._loop.create_task(self._take(listener.accept()[0]))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # it is called again for the next one
            return

    async def _take(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        await self._loop.connect_accepted_socket(lambda: ProxiedConnection(self), accepted)

    async def _each(self, what: Callable[[ProxiedConnection], None]) -> None:
        for connection in list(self._open):
            what(connection)

    def _hold_all(self) -> None:
        self.is_holding = True
        for connection in self._open:
            connection.hold()

    async def _hold(self) -> None:
        self._hold_all()

    async def _release(self) -> None:
        self._hold_from, self.is_holding = None, False
        await self._each(ProxiedConnection.release)

    async def _leave(self) -> None:
        self.is_away = True
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await self._each(ProxiedConnection.reset)
        await self._release()

    async def _reset(self) -> None:
        self.resets = True
        await self._each(ProxiedConnection.reset)
        await self._release()

    async def _refuse(self, head: bytes, body: bytes) -> None:
        self.refusal = (head, body)
        await self._release()

    async def _settle(self) -> None:
        for _ in range(3):  # the listener is read in one round, and its connections are taken in the next one
            await asyncio.sleep(0)

    async def _end(self) -> None:
        self._is_over = True
        await self._leave()
        # Connections that are being taken, and a coming back that somebody asked for at the last moment.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
            await self._leave()
        for _ in range(3):  # a closed transport tells its protocol a round later, and that one the other side's
            await asyncio.sleep(0)
