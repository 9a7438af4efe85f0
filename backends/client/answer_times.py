"""How long a server may take to answer one request about objects, retries and redirects included. Pure.

`Options` set the times for every storage alike (``connect_timeout_s``, ``first_byte_timeout_s``). Each attempt has half
of these times, because the next attempt may reach another server behind the same address. A time-out in the storage's
own options (``timeout``, ``requests_timeout``, ``read_timeout``) replaces them, and is the time of each attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streamer.core.options.limits import Limits

if TYPE_CHECKING:
    import aiohttp

BODY_S = 30.0  # for a page of a listing or a document; enough for 16 MiB, the largest index page, at half a MiB/s
SILENCE_S = 15.0  # longest pause in a body; an answer that may take longer to begin may pause as long
TOO_SLOW = "Check the network and the proxy on the way to it; a page or document must arrive within 30 s"
HOW_TO_WAIT = "If it is this slow, raise connect_timeout_s and first_byte_timeout_s in Options"
SLOWEST_UPLOAD_BYTES_PER_S = 256 << 10  # per connection, if eight share a line of 16 Mbit/s
ATTEMPTS = 3  # the most attempts of any client


@dataclass(frozen=True)
class AnswerTimes:
    """Times in seconds."""

    connect_s: float  # for one attempt to connect
    headers_s: float  # for one attempt, until the headers of the answer are complete
    all_headers_s: float  # for all attempts together, until the headers of the last answer are complete
    request_s: float  # for all attempts together, until the body is complete
    silence_s: float  # longest pause in the middle of a body

    def left_s(self, elapsed_s: float) -> float:
        """Return how long the next headers may take, `elapsed_s` after the first attempt began."""
        return max(0.0, min(self.headers_s, self.all_headers_s - elapsed_s))

    def with_upload(self, size_bytes: int) -> AnswerTimes:
        """Return the times of a request with a body of this size; the body is sent before the answer begins."""
        more_s = size_bytes / SLOWEST_UPLOAD_BYTES_PER_S
        return replace(
            self,
            headers_s=self.headers_s + more_s,
            all_headers_s=self.all_headers_s + more_s * ATTEMPTS,
            request_s=self.request_s + more_s * ATTEMPTS,
        )


def answer_times(limits: Limits, attempt_s: float | None = None) -> AnswerTimes:
    """Divide the time among attempts."""
    headers_s = limits.first_byte_timeout_s / 2 if attempt_s is None else attempt_s
    connect_s = limits.connect_timeout_s
    all_headers_s = connect_s + (limits.first_byte_timeout_s if attempt_s is None else attempt_s * ATTEMPTS)
    return AnswerTimes(connect_s / 2, headers_s, all_headers_s, all_headers_s + BODY_S, max(SILENCE_S, headers_s))


def named_times(limits: Limits, named: aiohttp.ClientTimeout | None) -> AnswerTimes:
    """Divide the time among attempts; an option of the storage may set parts of it."""
    if named is None:
        return answer_times(limits)
    times = answer_times(limits, named.total or named.sock_read)
    connect_s = named.connect or named.sock_connect or min(times.connect_s, named.total or times.connect_s)
    return replace(times, connect_s=connect_s)
