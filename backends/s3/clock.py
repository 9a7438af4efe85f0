"""The time of S3 signatures: this machine's time, or the server's time if the two differ.

S3 refuses a signature whose time is a quarter of an hour off, and checks the expiry of a signed URL by its own clock.
Every answer has the server's time, even a refusal. A difference that matters is added to the time of later signatures.
The clock of this machine, and of every other library in the process, is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from streamer.backends.private_names.botocore import change_before_signing, request_signer

__all__ = ["TOLERANCE_S", "clock_offset_s", "sign_at_offset", "signed_at_offset"]

# A `Date` is some seconds old when it is read, or older after a slow network. A smaller difference does no harm: S3
# tolerates 15 minutes, and our URLs are valid for 10.
TOLERANCE_S = 60.0

# The clock of a machine without a battery starts in 1970. A larger difference is no valid time, and may overflow.
MOST_S = 100 * 365.25 * 86400

_offset_s: ContextVar[float] = ContextVar("offset_s", default=0.0)
_TIMESTAMP = "%Y%m%dT%H%M%SZ"  # of SigV4, as botocore writes it into the context of a request


def clock_offset_s(date: str | None, now_s: float) -> float | None:
    """Return how many seconds the server's clock is ahead of this machine's.

    Args:
        date: The `Date` header of an answer (RFC 9110 §5.6.7).
        now_s: Unix time of this machine.

    Returns:
        Seconds to add to this machine's time; 0 if the difference does not matter, None without a valid date.

    Example:
        >>> clock_offset_s("Thu, 01 Jan 1970 01:00:00 GMT", 0.0)
        3600.0
    """
    try:
        server_time = parsedate_to_datetime(date or "")
        if server_time.tzinfo is None:  # "-0000" means an unknown time zone
            return None
        offset_s = server_time.timestamp() - now_s
    except (OverflowError, TypeError, ValueError):
        return None
    if abs(offset_s) > MOST_S:
        return None
    return offset_s if abs(offset_s) > TOLERANCE_S else 0.0


@contextmanager
def signed_at_offset(offset_s: float) -> Iterator[None]:
    """Make signatures of this thread at a time `offset_s` ahead of this machine's clock."""
    token = _offset_s.set(offset_s)
    try:
        yield
    finally:
        _offset_s.reset(token)


def sign_at_offset(client: Any) -> None:
    """Make a client of botocore obey `signed_at_offset`."""
    signer = request_signer(client)
    plain = signer.get_auth_instance

    def get_auth_instance(*names: Any, **arguments: Any) -> Any:
        auth = plain(*names, **arguments)
        if _offset_s.get():
            change_before_signing(auth, partial(_shift, _offset_s.get()))
        return auth

    signer.get_auth_instance = get_auth_instance


def _shift(offset_s: float, request: Any) -> None:
    """Change the time that SigV4 has just set in a request; no other signature that S3 accepts has a time."""
    time = datetime.strptime(request.context["timestamp"], _TIMESTAMP)
    request.context["timestamp"] = (time + timedelta(seconds=offset_s)).strftime(_TIMESTAMP)
