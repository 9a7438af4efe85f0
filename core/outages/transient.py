"""Decides which failures of a storage are transient: the same request, to read or write, may succeed a little later.

native/net/retry.h has the table of the statuses and codes of answers, for the engine and for Python.
"""

from __future__ import annotations

import errno

from streamer import _native
from streamer.core.errors import (
    ConnectError,
    CredentialsError,
    HttpStatusError,
    StorageError,
    StreamerError,
    TlsError,
    TransferTimeoutError,
)

UNKNOWN_HOST = "EAI_NONAME"  # the code of the error for a host that does not exist; in C, of getaddrinfo(3)
STATUSES_OF_ONE_REQUEST = frozenset({408, 500})  # the server may still answer other requests
STATUSES = frozenset(status for status in range(400, 600) if _native.asks_for_another_attempt(status, ""))
ERROR_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)


def is_transient(error: BaseException) -> bool:
    """Decide whether another attempt may succeed."""
    if isinstance(error, CredentialsError):  # the file of a token, for example, may be missing while it is rotated
        return error.may_come
    if isinstance(error, TlsError):  # a certificate stays wrong at the next attempt
        return False
    if isinstance(error, ConnectError) and error.code == UNKNOWN_HOST:
        return False
    if isinstance(error, (ConnectError, TransferTimeoutError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, StreamerError):
        return isinstance(error, HttpStatusError) and asks_for_another_attempt(error.status or 0, error.code)
    if isinstance(error, OSError) and error.errno in ERROR_NUMBERS:
        return True
    return any(getattr(error, name, None) in STATUSES for name in ("status", "status_code"))


def asks_for_another_attempt(status: int, code: str | None) -> bool:
    """Decide whether an answer asks for the same request again, by its HTTP status and the storage's error code."""
    return _native.asks_for_another_attempt(status, code or "")


def is_away(error: BaseException) -> bool:
    """Decide whether the whole server may be away: it, or a server behind it, does not answer, or throttles."""
    if isinstance(error, HttpStatusError):
        return error.status in STATUSES - STATUSES_OF_ONE_REQUEST
    is_of_one = isinstance(error, CredentialsError) or getattr(error, "status", None) in STATUSES_OF_ONE_REQUEST
    return is_transient(error) and not is_of_one


def is_transport_failure(error: BaseException) -> bool:
    """Decide whether the server sent no answer at all, not even a refusal."""
    is_of_proxy = isinstance(error, StorageError) and error.is_of_proxy
    return is_of_proxy or isinstance(error, (ConnectError, TlsError, TransferTimeoutError))
