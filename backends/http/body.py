"""Receives the body of an answer with a whole object, piece by piece and at a minimal pace.

Guarantees: a body that stops, or is too slow, fails after `stall_timeout_s`; bytes that arrived are returned before the
error that ended the body is raised.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import aiohttp

from streamer.backends.http.errors import raise_connection_error
from streamer.core.errors import TransferTimeoutError, TruncatedError
from streamer.core.options.limits import Limits

__all__ = ["next_piece"]

# Of `stall_bytes_per_s`, the pace of a range: here another attempt starts from the beginning of the object.
STALL_SHARE = 1 / 8


async def next_piece(response: aiohttp.ClientResponse, wanted_bytes: int, uri: str, limits: Limits) -> bytes:
    """Receive the next bytes of the body; fewer than wanted where it ends, breaks off or is slow.

    Raises:
        TransferTimeoutError: it stalled.
        TruncatedError: it had ended before.
        StorageError: the connection failed before the first of these bytes.
    """
    parts: list[bytes] = []
    began = monotonic()
    receiving = asyncio.ensure_future(_receive(response, wanted_bytes, parts))
    try:
        await asyncio.wait({receiving}, timeout=limits.stall_timeout_s)
    finally:
        is_slow = receiving.cancel()
    # The bytes that a cancelled receiver did not return are still in the response's buffer.
    await asyncio.wait({receiving})
    piece = b"".join(parts)
    if is_slow:
        _check_pace(len(piece), monotonic() - began, uri, limits)
    if piece:
        return piece
    if isinstance(error := receiving.exception(), Exception):
        raise_connection_error(error, uri)
    raise TruncatedError(
        "The server ends the file before its size",
        uri=uri,
        hint="Load again; if that fails, the file itself is cut short",
    )


async def _receive(response: aiohttp.ClientResponse, wanted_bytes: int, parts: list[bytes]) -> None:
    missing_bytes = wanted_bytes
    while missing_bytes and (part := await response.content.read(missing_bytes)):
        parts.append(part)
        missing_bytes -= len(part)


def _check_pace(received_bytes: int, elapsed_s: float, uri: str, limits: Limits) -> None:
    if received_bytes < limits.stall_bytes_per_s * STALL_SHARE * elapsed_s:
        raise TransferTimeoutError(
            f"The transfer stalled: {received_bytes} bytes in {elapsed_s:.1f} s",
            uri=uri,
            hint="The server has no ranges, so each attempt starts from the beginning; use a server with ranges",
        )
