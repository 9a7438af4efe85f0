"""How often a client retries a request about objects, after which failures, and how long it pauses before.

Guarantees: retries end after the last attempt, and sooner where the time (`AnswerTimes`) is over; pauses grow and have
jitter, so that many clients do not come back at the same moment. Cancelling ends a pause at once. Longer outages are
for core/outages/patience.py. botocore retries by itself; this is for the clients that do not.
"""

from __future__ import annotations

import asyncio
import random
from time import monotonic, sleep

from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes

__all__ = ["Attempts"]

PAUSE_S = 0.25  # before the second attempt, twice as long before the third


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
        await asyncio.sleep(self._pause_s(least_s))
        self.number += 1

    def wait(self, least_s: float = 0.0) -> None:
        """Do the same on a thread of the caller's."""
        sleep(self._pause_s(least_s))
        self.number += 1

    def _pause_s(self, least_s: float) -> float:
        jitter = 0.5 + random.random()  # noqa: S311 (no secret)
        growth: int = 2 ** (self.number - 1)
        return max(least_s, PAUSE_S * growth * jitter)
