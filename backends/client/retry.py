"""Retries lookups and writes (listings, HEADs, uploads): decides how often, and how long to wait.

Guarantees: retries end after the last attempt, or earlier if the time (`AnswerTimes`) is over. Pauses grow and have
jitter, so that many clients do not retry at the same moment; the pause that a server demands, and whether an answer
asks for another attempt, are the engine's own rules (native/http/demanded_pause.h, native/net/retry.h). Ctrl-C ends a
pause at once. Longer outages are handled by core/outages/outage_waits.py, and retries of reads by native/net/retry.h.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic, sleep
from typing import Any

from streamer import _native
from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes
from streamer.backends.client.answer_values import refuse_cut
from streamer.backends.client.exchange import Response, send
from streamer.core.errors import StorageError, StreamerError, TransferTimeoutError, TruncatedError
from streamer.core.outages.outage_waits import first_byte_limit_s
from streamer.core.outages.transient import asks_for_another_attempt, is_transient
from streamer.core.store.sources import HttpSource

PAUSE_S = 0.25  # before the second attempt; twice as long before the third
_NO_DESCRIPTOR = (errno.errorcode[errno.EMFILE], errno.errorcode[errno.ENFILE])
ATTEMPTS_IN_SILENCE = 2  # the second may reach another server behind the same address

LONGEST_PAUSE_S = 1.0  # a client waits this long itself; core/outages/outage_waits.py waits longer, and logs it


class Attempts:
    """Counts the attempts of one request; its client decides after which failures it retries."""

    def __init__(self, times: AnswerTimes, most: int = ATTEMPTS) -> None:
        self._times = times
        self._first_byte_s = first_byte_limit_s()
        self._most = most if self._first_byte_s == inf else 1
        self.number = 1  # number of the current attempt, from 1
        self.began_s = monotonic()  # when the first attempt began, by `time.monotonic`

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt began."""
        return monotonic() - self.began_s

    @property
    def is_repeated(self) -> bool:
        """Whether a request failed before: an earlier attempt, or, for the probe of an outage, another request."""
        return self.number > 1 or self._first_byte_s < inf

    @property
    def head_timeout_s(self) -> float:
        """Seconds that the head of the answer may take in the current attempt."""
        return min(self._times.left_s(self.elapsed_s), self._first_byte_s)

    @property
    def are_over(self) -> bool:
        """Whether the current attempt is the last, by the count of attempts or by the time."""
        return self.number >= self._most or not self.head_timeout_s

    def wait(self, least_s: float = 0.0) -> None:
        """Wait before the next attempt, at least as long as the server demands."""
        sleep(self._pause_s(least_s))
        self.number += 1

    def _pause_s(self, least_s: float) -> float:
        jitter = 0.5 + random.random()  # noqa: S311 (no secret)
        growth: int = 2 ** (self.number - 1)
        return max(least_s, PAUSE_S * growth * jitter)


def answered(
    request: Callable[[Attempts], Response], times: AnswerTimes, uri: str | None, most: int = ATTEMPTS
) -> tuple[Response, Attempts]:
    """Send a request, and retry it after a transient failure; return the answer, of any status, and the attempts."""
    attempts = Attempts(times, most)
    while True:
        try:
            response = request(attempts)
        except StreamerError as error:
            is_silent = isinstance(error, TransferTimeoutError) and attempts.number >= ATTEMPTS_IN_SILENCE
            if attempts.are_over or is_silent or not may_pass(error):
                raise _completed(error, uri, attempts) from error.__cause__
            pause_s = 0.0
        else:
            pause_s = demanded_pause_s(response.status, response.headers)
            is_wanted = asks_for_another_attempt(response.status, response.error_code)
            if attempts.are_over or not is_wanted or pause_s > LONGEST_PAUSE_S:
                return response, attempts
            response.finish()
        attempts.wait(pause_s)


def whole_answer(
    source: HttpSource,
    times: AnswerTimes,
    uri: str | None,
    method: str,
    body: bytes | memoryview,
    *,
    most_bytes: int,
    check: Callable[[bytes], object] | None = refuse_cut,
    most: int = ATTEMPTS,
    began_s: float | None = None,
    sender: Callable[..., Response] = send,
) -> tuple[Response, Attempts]:
    """Send a request as `answered` does, and receive the whole answer; `check` refuses a document that is cut."""
    times = times.with_upload(len(body))

    def once(attempts: Attempts) -> Response:
        left_s = times.left_s(monotonic() - (began_s or attempts.began_s))
        how: dict[str, Any] = {
            "head_timeout_s": min(attempts.head_timeout_s, left_s),
            "is_repeated": attempts.is_repeated,
        }
        response = sender(source, times, method=method, body=body, **how)
        response.read(most_bytes)
        if check is not None and method == "GET" and response.status == 200:
            check(response.body)
        return response

    return answered(once, times, uri, most)


def may_pass(error: StreamerError) -> bool:
    """Say whether the same request may succeed a moment later."""
    has_no_descriptor = isinstance(error, StorageError) and error.code in _NO_DESCRIPTOR
    return is_transient(error) or has_no_descriptor or isinstance(error, TruncatedError)  # a document that breaks off


def _completed(error: StreamerError, uri: str | None, attempts: Attempts) -> StreamerError:
    error.uri = error.uri or uri
    if isinstance(error, StorageError):
        error.attempts, error.elapsed_s = attempts.number, attempts.elapsed_s
    return error


def demanded_pause_s(status: int, headers: Mapping[str, str]) -> float:
    """Return the pause in seconds that an answer demands before the next request, or 0.

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
