"""Sends a request until it is answered: how often, after which failures, and after which pauses.

Guarantees: retries end after the last attempt, and sooner where the time (`AnswerTimes`) is over; pauses grow and have
jitter, so that many clients do not come back at the same moment. Ctrl-C ends a pause at once. Longer outages are for
core/outages/patience.py.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.exchange import Response
from streamer.backends.client.retry import Attempts
from streamer.core.errors import StorageError, StreamerError, TransferTimeoutError
from streamer.core.outages.transient import STATUSES, is_transient

__all__ = ["answered", "may_pass"]

_NO_DESCRIPTOR = (errno.errorcode[errno.EMFILE], errno.errorcode[errno.ENFILE])
ATTEMPTS_IN_SILENCE = 2  # the second may reach another server behind the same address


def answered(
    request: Callable[[Attempts], Response], times: AnswerTimes, uri: str | None, most: int = ATTEMPTS
) -> tuple[Response, Attempts]:
    """Send a request, and again after a failure that may pass.

    Args:
        request: Sends it; called for each attempt.
        times: How long all attempts may take.
        uri: URL for messages, without secrets.
        most: How many attempts there may be.

    Returns:
        The answer, of any status, and the attempts that it took.

    Raises:
        StreamerError: of the last attempt.
    """
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
            if attempts.are_over or response.status not in STATUSES or pause_s > LONGEST_PAUSE_S:
                return response, attempts
            response.finish()
        attempts.wait(pause_s)


def may_pass(error: StreamerError) -> bool:
    """Whether the same request may succeed a moment later."""
    has_no_descriptor = isinstance(error, StorageError) and error.code in _NO_DESCRIPTOR
    return is_transient(error) or has_no_descriptor


def _completed(error: StreamerError, uri: str | None, attempts: Attempts) -> StreamerError:
    error.uri = error.uri or uri
    if isinstance(error, StorageError):
        error.attempts, error.elapsed_s = attempts.number, attempts.elapsed_s
    return error
