"""The pause that a server demands when it refuses a request, read by the engine's own rule for all storages.

See native/http/demanded_pause.h: the rule reads ``Retry-After`` as seconds or a date, and ``RateLimit``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from streamer import _native

__all__ = ["LONGEST_PAUSE_S", "demanded_pause_s"]

LONGEST_PAUSE_S = 1.0  # a client waits this long itself; core/outages/patience.py waits longer, and logs it


def demanded_pause_s(status: int, headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that an answer demands before the next request, or 0.

    Args:
        status: Status of the answer.
        headers: Headers of the answer; names in any case, and a name may occur repeatedly.

    Example:
        >>> demanded_pause_s(429, {"Retry-After": "7"}), demanded_pause_s(429, {"ratelimit": '"api";r=0;t=6'})
        (7.0, 6.0)
    """
    values = {"retry-after": "", "ratelimit": "", "date": ""}
    for name, value in headers.items():
        if name.lower() in values and value.isascii():
            values[name.lower()] += f"{', ' if values[name.lower()] else ''}{value}"
    return _native.demanded_pause_s(
        status,
        retry_after=values["retry-after"],
        rate_limit=values["ratelimit"],
        date=values["date"],
        unix_now_s=time.time(),
    )
