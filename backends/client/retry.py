"""How often a client asks a server again, after which failures, and how long it pauses before that.

Guarantees: a question ends after its last attempt, and sooner where its time (`AnswerTimes`) is over; pauses grow and
are drawn at random, so that many clients do not come back at the same moment. Cancelling ends a pause at once.
Longer outages are for core/outages/patience.py. botocore retries by itself; this is for the clients that do not.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic

import aiohttp

from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes
from streamer.backends.client.bounded_answers import TooSlowError
from streamer.core.errors import StreamerError

__all__ = ["Attempts", "is_transient"]

PAUSE_S = 0.25  # before the second attempt, twice as long before the third

_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, asyncio.TimeoutError, OSError)
_LASTING = (aiohttp.ClientSSLError, TooSlowError, StreamerError)  # the last is what we refuse ourselves


def is_transient(error: BaseException) -> bool:
    """Say whether asking again may help after an exception of aiohttp."""
    return isinstance(error, _TRANSIENT) and not isinstance(error, _LASTING)


class Attempts:
    """Counts the attempts at one question; whoever asks decides which failures another attempt may follow.

    Args:
        times: How long the attempts may take together.
        most: How many there may be: the first, one for a connection that was closed while idle, and one for a server
            that restarts.

    Attributes:
        number: Of the attempt under way, from 1.
        began_s: When the first one began, by `time.monotonic`.
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
        """No attempt may follow the one under way: it is the last, or the time is over."""
        return self.number >= self._most or not self._times.left_s(self.elapsed_s)

    async def pause(self, least_s: float = 0.0) -> None:
        """Wait before the next attempt, at least as long as the server asks for."""
        jitter = 0.5 + random.random()  # noqa: S311 (no secret)
        await asyncio.sleep(max(least_s, PAUSE_S * 2 ** (self.number - 1) * jitter))
        self.number += 1
