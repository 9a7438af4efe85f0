"""Receives the body of an answer that is a whole object, piece by piece, and demands a minimum pace.

Guarantees: a body that stops, or is too slow, fails after `stall_timeout_s`; bytes that arrived are returned before the
error that ended the body is raised.
"""

from __future__ import annotations

from time import monotonic

from streamer.backends.client.exchange import Response
from streamer.core.errors import StreamerError, TransferTimeoutError, TruncatedError
from streamer.core.options.limits import Limits

__all__ = ["receive"]

# Share of `stall_bytes_per_s`, the minimum pace of a range; lower here, because a retry starts from the object's start.
STALL_SHARE = 1 / 8


def receive(response: Response, buffer: memoryview, uri: str, limits: Limits) -> int:
    """Receive the next bytes of the body. The buffer stays partly empty if the body ends, breaks off or is slow.

    Raises:
        TransferTimeoutError: the body stalled.
        TruncatedError: the body ended before its first of these bytes.
        StorageError: the connection failed before the first of these bytes.
    """
    began = monotonic()
    try:
        count = response.read_into(buffer, limits.stall_timeout_s)
    except StreamerError as error:
        error.uri = uri
        raise
    if count == len(buffer):
        return count
    if count == 0 and response.has_ended:
        raise TruncatedError(
            "The server ends the file before its size",
            uri=uri,
            hint="Load again; if that fails, the file itself is cut short",
        )
    elapsed_s = monotonic() - began
    if elapsed_s >= limits.stall_timeout_s:
        _check_pace(count, elapsed_s, uri, limits)
    return count


def _check_pace(received_bytes: int, elapsed_s: float, uri: str, limits: Limits) -> None:
    if received_bytes < limits.stall_bytes_per_s * STALL_SHARE * elapsed_s:
        raise TransferTimeoutError(
            f"The transfer stalled: {received_bytes} bytes in {elapsed_s:.1f} s",
            uri=uri,
            hint="The server has no ranges, so each attempt starts from the beginning; use a server with ranges",
        )
