"""One connection through a `TcpProxy`: what the client sends goes to the server, what the server sends comes back.

The server is called when the client has said something: a client that is refused or reset never reaches it. Everything
here runs on the proxy's own thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.tcp_proxy import TcpProxy

READ_BYTES = 64 << 10
PACED_READ_S = 0.001  # many connections read before the first of them waits: little each


class ProxiedConnection(asyncio.Protocol):
    """The client's side."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy
        self._transport: asyncio.Transport
        self._server: _ServerSide | None = None
        self._calling: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._uncounted = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._proxy.opened(self)
        if self._proxy.is_away:  # accepted in the very moment in which the proxy left
            self.reset()

    def data_received(self, data: bytes) -> None:
        heads = (self._uncounted + data).split(b"\r\n\r\n")[:-1]
        requests, self._uncounted = self._proxy.counts(self._uncounted + data)
        self._proxy.saw_requests(requests)
        if self._proxy.resets:
            self.reset()
        elif self._proxy.refusal is not None:
            self._refuse(*self._proxy.refusal, heads)
        elif self._server is not None:
            self._server.transport.write(data)
        else:
            self._unsent.append(data)
            if self._calling is None:
                self._calling = asyncio.get_running_loop().create_task(self._call())

    def connection_lost(self, error: Exception | None) -> None:
        self._proxy.closed(self)
        if self._server is not None:
            self._server.transport.abort()
        elif self._calling is not None:
            self._calling.cancel()

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause("client")

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.resume("client")

    def hold(self) -> None:
        """Pass on no answer."""
        if self._server is not None:
            self._server.pause("held")

    def release(self) -> None:
        """Pass on answers again."""
        if self._server is not None:
            self._server.resume("held")

    def give(self, data: bytes) -> None:
        """Pass on a piece of an answer."""
        self._transport.write(data)

    def end(self) -> None:
        """Close the connection behind what was passed on."""
        self._transport.close()

    def cut(self) -> None:
        """Close the connection now."""
        self._transport.abort()

    def reset(self) -> None:
        """Reset the connection (RST) now."""
        self._proxy.turned_away += 1
        now = struct.pack("ii", 1, 0)  # SO_LINGER, no time: closing drops what is unsent and sends RST
        with suppress(OSError):  # it is closed already
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self._transport.abort()

    def _refuse(self, head: bytes, body: bytes, requests: list[bytes]) -> None:
        self._proxy.turned_away += len(requests)
        for request in requests:
            self._transport.write(head if request.startswith(b"HEAD ") else head + body)

    def called(self, server: _ServerSide) -> None:
        """Send the server what has come meanwhile."""
        self._server = server
        for data in self._unsent:
            server.transport.write(data)
        if self._transport.is_closing():
            server.transport.abort()

    async def _call(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _ServerSide(self._proxy, self), *self._proxy.server)
        except OSError:
            self.reset()


class _ServerSide(asyncio.BufferedProtocol):
    def __init__(self, proxy: TcpProxy, client: ProxiedConnection) -> None:
        self.transport: asyncio.Transport
        self._proxy, self._client = proxy, client
        self._pauses: set[str] = set()
        paced = READ_BYTES if proxy.bytes_per_s is None else int(proxy.bytes_per_s * PACED_READ_S)
        self._buffer = memoryview(bytearray(max(1, min(READ_BYTES, paced))))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._client.called(self)
        asyncio.get_running_loop().call_soon(self._begin)  # behind asyncio's own first step, which begins to read

    def _begin(self) -> None:
        if self._proxy.is_holding:
            self.pause("held")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._proxy.passed_bytes += count  # first: a client that has them finds them counted
        self._client.give(bytes(self._buffer[:count]))
        wait_s = self._proxy.passed(count)
        if wait_s > 0:
            self.pause("pace")
            asyncio.get_running_loop().call_later(wait_s, self.resume, "pace")

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self._client.end()
        else:
            self._client.reset()

    def pause(self, why: str) -> None:
        self._pauses.add(why)
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self, why: str) -> None:
        self._pauses.discard(why)
        if not self._pauses and not self.transport.is_closing():
            self.transport.resume_reading()
