"""Which failures of a storage may pass: the same question asked a little later may be answered.

The one table for what Python reads; native/net/retry.h has the engine's own.
"""

from __future__ import annotations

import errno

from streamer.core.errors import ConnectError, HttpStatusError, StreamerError, TlsError, TransferTimeoutError

__all__ = ["STATUSES", "is_away", "is_transient", "is_transport_failure"]

STATUSES_OF_ONE_REQUEST = frozenset({408, 500})  # the server may well answer others
STATUSES = frozenset({408, 429, 500, 502, 503, 504})
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
    """Tell whether another attempt may succeed.

    Args:
        error: One of ours, or whatever the library of a plug-in raised: its class (`ConnectionError`, `TimeoutError`),
            its ``errno`` or its HTTP status (``status``, ``status_code``) tells.
    """
    if isinstance(error, TlsError):  # a certificate does not become right by asking again
        return False
    if isinstance(error, (ConnectError, TransferTimeoutError, ConnectionError, TimeoutError)):
        return True
    if isinstance(error, StreamerError):
        return isinstance(error, HttpStatusError) and error.status in STATUSES
    if isinstance(error, OSError) and error.errno in ERROR_NUMBERS:
        return True
    return any(getattr(error, name, None) in STATUSES for name in ("status", "status_code"))


def is_away(error: BaseException) -> bool:
    """Tell whether the whole server may be away: it, or the one behind it, does not answer or asks for patience."""
    return is_transient(error) and getattr(error, "status", None) not in STATUSES_OF_ONE_REQUEST


def is_transport_failure(error: BaseException) -> bool:
    """Tell whether there was no answer at all, not even one that refuses."""
    return isinstance(error, (ConnectError, TlsError, TransferTimeoutError))
