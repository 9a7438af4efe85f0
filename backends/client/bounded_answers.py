"""Answers that are no tensors, bounded in size and time: a server may send for ever, or a letter at a time.

Guarantees: no more than the allowed bytes (and one piece of a socket's buffer) are held, and none are asked for where
Content-Length announces more; what a client library would unpack counts unpacked. Headers are complete, and a body is,
within the time they are allowed, however steadily they come. `body_of` is for requests of our own. The clients of S3
and Azure read by themselves, in sessions that they share between loads: `allowing` says how much the requests of one
task may bring, and `bind` makes a session obey.
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
from streamer.backends.private_names.aiohttp import is_read, set_body, set_response_class
from streamer.core.errors import StorageError
from streamer.core.outages.received import note_bytes

__all__ = ["Allowance", "BoundedResponse", "TooSlowError", "allowing", "bind", "body_of", "last_status"]

PIECE_BYTES = 1 << 20  # unpacked at a time
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": -zlib.MAX_WBITS}  # as azure-core unpacks them


class TooSlowError(aiohttp.ServerTimeoutError):
    """A body has begun to come, and is not complete in time."""


@dataclass
class Allowance:
    """What the answers to one task's requests may bring.

    Attributes:
        most_bytes: In each body.
        times: How long they may take.
        asked_at: When the first of these requests was sent.
        has_answer: A body has come: whatever fails afterwards is about what it says.
        last_status: Of the last answer that has come.
        has_slow_answer: One has begun to come, and was given up.
    """

    most_bytes: int
    times: AnswerTimes
    asked_at: float
    has_answer: bool = False
    last_status: int | None = None
    has_slow_answer: bool = False


_allowance: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(most_bytes: int, times: AnswerTimes, asked_at: float | None = None) -> Iterator[Allowance]:
    """Bound the answers to what this task asks for in bound sessions."""
    allowance = Allowance(most_bytes, times, monotonic() if asked_at is None else asked_at)
    token = _allowance.set(allowance)
    try:
        yield allowance
    finally:
        _allowance.reset(token)


def bind(session: aiohttp.ClientSession) -> None:
    """Have a session read answers as far as the task that asks is allowed."""
    set_response_class(session, BoundedResponse)


def last_status() -> int | None:
    """Tell the status of the last answer that this task was given in a bound session."""
    allowance = _allowance.get()
    return None if allowance is None else allowance.last_status


async def body_of(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Read the body of an answer.

    Raises:
        StorageError: it is longer.
        TooSlowError: it takes longer than `BODY_S`.
        aiohttp.ClientError: as of ``response.read()``.
    """
    # The answer to a HEAD tells the size of an object, and has no body.
    is_too_long = response.method != "HEAD" and (response.content_length or 0) > most_bytes
    body = bytearray()
    try:
        if not is_too_long:
            is_too_long = await asyncio.wait_for(_read(response, body, most_bytes), BODY_S)
    except asyncio.TimeoutError as error:
        response.close()
        if (allowance := _allowance.get()) is not None:
            allowance.has_slow_answer = True
        raise TooSlowError("The body did not come to its end") from error
    except BaseException:
        response.close()
        raise
    if is_too_long:
        raise _refused(response, most_bytes)
    return bytes(body)


async def _read(response: aiohttp.ClientResponse, body: bytearray, most_bytes: int) -> bool:
    """Fill `body`; tell whether there is more than is allowed."""
    while piece := await response.content.readany():
        body += piece
        note_bytes(len(piece))
        if len(body) > most_bytes:
            return True
    return False


class BoundedResponse(aiohttp.ClientResponse):
    """An answer that keeps to the allowance of the task that asked for it."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the headers, which must be complete in time.

        Raises:
            NotHttpError: what comes is something else.
        """
        allowance = _allowance.get()
        timer = None
        if allowance is not None:
            late = aiohttp.ServerTimeoutError("The headers of the answer did not come to their end")
            wait_s = allowance.times.left_s(monotonic() - allowance.asked_at)
            # Not `wait_for`: its task would begin after an answer that is quick, and closes the connection.
            timer = asyncio.get_running_loop().call_later(wait_s, connection.protocol.set_exception, late)
        try:
            return await super().start(connection)
        except aiohttp.ClientResponseError as error:
            raise NotHttpError(error) from None  # it repeats the request
        finally:
            if timer is not None:
                timer.cancel()

    async def read(self) -> bytes:
        """Read the body as far as it is allowed to whoever asks."""
        allowance = _allowance.get()
        if allowance is None or is_read(self):
            return await super().read()
        body = await body_of(self, allowance.most_bytes)
        if _is_larger_unpacked(body, self.headers.get("Content-Encoding", ""), allowance.most_bytes):
            raise _refused(self, allowance.most_bytes)
        allowance.has_answer, allowance.last_status = True, self.status
        set_body(self, body)
        return body


def _is_larger_unpacked(body: bytes, encoding: str, most_bytes: int) -> bool:
    window = _WINDOWS.get(encoding.lower())
    if window is None:
        return False
    unpacking, rest, size = zlib.decompressobj(window), body, 0
    while rest and not unpacking.eof and size <= most_bytes:
        try:
            size += len(unpacking.decompress(rest, PIECE_BYTES))
        except zlib.error:  # for the client library to complain about
            return False
        rest = unpacking.unconsumed_tail
    return size > most_bytes


def _refused(response: aiohttp.ClientResponse, most_bytes: int) -> StorageError:
    response.close()
    return StorageError(
        f"The server's answer, which is none of tensors, has more than {most_bytes} bytes",
        status=response.status,
        hint="Check the URL and endpoint, or raise answer_bytes in Options",
    )
