"""How often a client retries a request about objects, after which failures, and how long it pauses before.

Guarantees: retries end after the last attempt, and sooner where the time (`AnswerTimes`) is over; pauses grow and have
jitter, so that many clients do not come back at the same moment. Cancelling ends a pause at once. Longer outages are
for core/outages/patience.py. botocore retries by itself; this is for the clients that do not.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import aiohttp

from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes
from streamer.backends.client.bounded_answers import TooSlowError
from streamer.backends.client.unreachable import is_unknown_host
from streamer.core.errors import StreamerError
from streamer.core.store.certificates import demands_certificate

__all__ = ["Attempts", "is_transient"]

PAUSE_S = 0.25  # before the second attempt, twice as long before the third

_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, OSError)
_LASTING = (aiohttp.ClientSSLError, TooSlowError, StreamerError)  # the last are refusals of our own


def is_transient(error: BaseException) -> bool:
    """Say whether a retry may help after an exception of aiohttp."""
    is_final = isinstance(error, _LASTING) or is_unknown_host(error) or demands_certificate(error) is not None
    return isinstance(error, _TRANSIENT) and not is_final


class Attempts:
    """Counts the attempts of one request; its client decides after which failures it retries.

    Args:
        times: How long the attempts may take together.
        most: How many there may be: the first, one for a connection that was closed while idle, and one for a server
            that restarts.

    Attributes:
        number: Number of the current attempt, from 1.
        began_s: When the first attempt began, by `time.monotonic`.
    """

    def __init__(self, times: AnswerTimes, most: int = ATTEMPTS) -> None:
        self._times, self._most = times, most
        self.number = 1
        self.began_s = monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt began."""
        return monotonic() - self.began_s

    @property
    def are_over(self) -> bool:
        """The current attempt is the last: there are no more, or the time is over."""
        return self.number >= self._most or not self._times.left_s(self.elapsed_s)

    async def pause(self, least_s: float = 0.0) -> None:
        """Wait before the next attempt, at least as long as the server demands."""
        jitter = 0.5 + random.random()  # noqa: S311 (no secret)
        await asyncio.sleep(max(least_s, PAUSE_S * 2 ** (self.number - 1) * jitter))
        self.number += 1
