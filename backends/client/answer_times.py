"""How long a server may take to answer one question about objects, its further attempts and redirects included. Pure.

`Options` say it for every storage alike (``connect_timeout_s``, ``first_byte_timeout_s``). An attempt has half of
either, because the next may meet another server behind the same address. What the user says to a storage's own client
(``timeout``, ``requests_timeout``, ``read_timeout``) counts more: each attempt has that.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamer.core.options.limits import Limits

__all__ = ["BODY_S", "HOW_TO_WAIT", "AnswerTimes", "answer_times"]

BODY_S = 30.0  # for a page of a listing or a document; 16 MiB, the largest index page, at half a MiB/s
SILENCE_S = 15.0  # in the middle of a body, or longer where an answer may begin so late
HOW_TO_WAIT = "If it is this slow, raise connect_timeout_s and first_byte_timeout_s in Options"
ATTEMPTS = 3  # the most that any of the clients makes


@dataclass(frozen=True)
class AnswerTimes:
    """In seconds.

    Attributes:
        connect_s: Of one attempt, until it has a connection.
        headers_s: Of one attempt, until an answer's headers are complete.
        all_headers_s: Of one question, until the headers that matter are complete.
        question_s: Of one question, until the body of its answer is complete.
        silence_s: Longest pause in the middle of a body.
    """

    connect_s: float
    headers_s: float
    all_headers_s: float
    question_s: float
    silence_s: float

    def left_s(self, gone_s: float) -> float:
        """Say how long the next headers may take, so long after the first request."""
        return max(0.0, min(self.headers_s, self.all_headers_s - gone_s))


def answer_times(limits: Limits, given_s: float | None = None) -> AnswerTimes:
    """Divide the time.

    Args:
        limits: As `Options` have them.
        given_s: What the user gave one attempt in the storage's own options.
    """
    headers_s = limits.first_byte_timeout_s / 2 if given_s is None else given_s
    connect_s = limits.connect_timeout_s
    all_headers_s = connect_s + (limits.first_byte_timeout_s if given_s is None else given_s * ATTEMPTS)
    return AnswerTimes(connect_s / 2, headers_s, all_headers_s, all_headers_s + BODY_S, max(SILENCE_S, headers_s))
