"""Bounds the size and time of answers about objects: a server may send without end, or one byte at a time.

Guarantees: at most the allowed bytes of a body (and one piece of a socket's buffer) are held in memory, and none are
read where Content-Length announces more; a body that a client library would decompress counts decompressed. Headers
and bodies are complete within their time, however steadily bytes arrive. Requests of our own read with `body_of`. The
clients of S3 and Azure read answers themselves, in sessions that loads share: `allowing` sets the bounds for the
requests of one task, and `bind` makes a session keep to them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp

from streamer.backends.client.answer_times import BODY_S, AnswerTimes
from streamer.backends.client.not_http import NotHttpError
from streamer.backends.client.unreachable import is_unknown_host
from streamer.backends.private_names.aiohttp import is_read, set_body, set_response_class
from streamer.core.errors import StorageError, StreamerError
from streamer.core.outages.received import note_bytes
from streamer.core.secrets.urls import SecretBytes
from streamer.core.store.certificates import demands_certificate

__all__ = ["Allowance", "BoundedResponse", "TooSlowError", "allowing", "bind", "body_of", "is_transient", "last_status"]

PIECE_BYTES = 1 << 20  # decompressed at a time
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": -zlib.MAX_WBITS}  # as azure-core decompresses them


class TooSlowError(aiohttp.ServerTimeoutError):
    """A body began to arrive, and was not complete in time."""


@dataclass
class Allowance:
    """The bounds of the answers to the requests of one task, and what has arrived so far.

    Attributes:
        most_bytes: Largest body.
        times: How long the answers may take.
        began_s: When the first of the requests was sent, by `time.monotonic`.
        has_answer: A body has arrived, so that a later failure is about its content.
        last_status: Status of the last answer that has arrived.
        has_slow_answer: An answer began to arrive, and took too long.
    """

    most_bytes: int
    times: AnswerTimes
    began_s: float
    has_answer: bool = False
    last_status: int | None = None
    has_slow_answer: bool = False


_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(most_bytes: int, times: AnswerTimes, began_s: float | None = None) -> Iterator[Allowance]:
    """Bound the answers to the requests that this task sends in bound sessions."""
    allowance = Allowance(most_bytes, times, monotonic() if began_s is None else began_s)
    token = _allowance.set(allowance)
    try:
        yield allowance
    finally:
        _allowance.reset(token)


def bind(session: aiohttp.ClientSession) -> None:
    """Make a session keep to the bounds of the task that sends a request in it."""
    set_response_class(session, BoundedResponse)


def last_status() -> int | None:
    """Return the status of the last answer to a request of this task in a bound session."""
    allowance = _allowance.get()
    return None if allowance is None else allowance.last_status


async def body_of(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Read the body of a response.

    Raises:
        StorageError: it is longer than `most_bytes`.
        TooSlowError: it takes longer than `BODY_S`.
        aiohttp.ClientError: as of ``response.read()``.
    """
    # The Content-Length of the answer to a HEAD is that of the object; it has no body.
    is_too_long = response.method != "HEAD" and (response.content_length or 0) > most_bytes
    body = bytearray()
    try:
        if not is_too_long:
            is_too_long = await asyncio.wait_for(_read(response, body, most_bytes), BODY_S)
    except asyncio.TimeoutError as error:
        response.close()
        if (allowance := _allowance.get()) is not None:
            allowance.has_slow_answer = True
        raise TooSlowError("The body was not complete in time") from error
    except BaseException:
        response.close()
        raise
    if is_too_long:
        raise _too_long(response, most_bytes)
    return SecretBytes(body)


async def _read(response: aiohttp.ClientResponse, body: bytearray, most_bytes: int) -> bool:
    """Append to `body`; return whether it is longer than allowed."""
    while piece := await response.content.readany():
        body += piece
        note_bytes(len(piece))
        if len(body) > most_bytes:
            return True
    return False


class BoundedResponse(aiohttp.ClientResponse):
    """A response that keeps to the bounds of the task that sent its request."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the headers, which must be complete in time.

        Raises:
            NotHttpError: the server sends something other than HTTP.
        """
        allowance = _allowance.get()
        timer = None
        if allowance is not None:
            late = aiohttp.ServerTimeoutError("The headers of the answer were not complete in time")
            wait_s = allowance.times.left_s(monotonic() - allowance.began_s)
            # Not `wait_for`: its task would start only after a quick answer, which closes the connection.
            timer = asyncio.get_running_loop().call_later(wait_s, connection.protocol.set_exception, late)
        try:
            return await super().start(connection)
        except aiohttp.ClientResponseError as error:
            raise NotHttpError(error) from None  # its text repeats the request
        finally:
            if timer is not None:
                timer.cancel()

    async def read(self) -> bytes:
        """Read the body within the bounds of the task that reads it."""
        allowance = _allowance.get()
        if allowance is None or is_read(self):
            return await super().read()
        body = await body_of(self, allowance.most_bytes)
        if _is_larger_decompressed(body, self.headers.get("Content-Encoding", ""), allowance.most_bytes):
            raise _too_long(self, allowance.most_bytes)
        allowance.has_answer, allowance.last_status = True, self.status
        set_body(self, body)
        return body


def _is_larger_decompressed(body: bytes, encoding: str, most_bytes: int) -> bool:
    window = _WINDOWS.get(encoding.lower())
    if window is None:
        return False
    decompressor, rest, size = zlib.decompressobj(window), body, 0
    while rest and not decompressor.eof and size <= most_bytes:
        try:
            size += len(decompressor.decompress(rest, PIECE_BYTES))
        except zlib.error:  # the client library reports it
            return False
        rest = decompressor.unconsumed_tail
    return size > most_bytes


def _too_long(response: aiohttp.ClientResponse, most_bytes: int) -> StorageError:
    response.close()
    return StorageError(
        f"The server's answer to a request about objects has more than {most_bytes} bytes",
        status=response.status,
        hint="Check the URL and endpoint, or raise answer_bytes in Options",
    )


_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, OSError)
_LASTING = (aiohttp.ClientSSLError, TooSlowError, StreamerError)  # the last are refusals of our own


def is_transient(error: BaseException) -> bool:
    """Say whether a retry may help after an exception of aiohttp."""
    is_final = isinstance(error, _LASTING) or is_unknown_host(error) or demands_certificate(error) is not None
    return isinstance(error, _TRANSIENT) and not is_final
