"""Requests about objects over the engine's own connections, which the data then finds open.

They need no HTTP library of Python's, whose import takes longer than a small load. An answer that is not there in time
is no error: whoever asks has another way to find out why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamer import _native
from streamer.backends.client.answer_times import AnswerTimes
from streamer.core.outages.received import note_bytes
from streamer.core.store.sources import HttpSource
from streamer.core.store.trust import default_ca_file

__all__ = ["Answer", "ask"]

PATIENCE_S = 1.5  # then the library's own client asks, which may reach another server behind the same address


class Answer(NamedTuple):
    """A whole answer: its status, its headers by their names in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    source: HttpSource,
    *,
    is_head: bool = False,
    most_bytes: int,
    may_be_cut: bool = False,
    times: AnswerTimes,
) -> Answer | None:
    """Send one request, once, and follow no redirect.

    Args:
        source: URL, headers, certificates and proxy.
        is_head: Whether to send a HEAD, whose answer has no body, or a GET.
        most_bytes: Largest body.
        may_be_cut: Whether a longer body is cut there; otherwise there is no answer.
        times: How long an answer may take; here at most `PATIENCE_S`.

    Returns:
        None if there was no such answer, for whatever reason.
    """
    target = _native.HttpTarget(
        url=source.url,
        headers=[f"{name}: {value}" for name, value in source.headers.items()],
        ca_file=source.ca_file or default_ca_file(),
        proxy=source.proxy or "",
        expires_at_s=0.0,
        renew_at_s=0.0,
    )
    answer = _native.ask(
        target,
        is_head=is_head,
        most_bytes=most_bytes,
        may_be_cut=may_be_cut,
        connect_timeout_s=min(PATIENCE_S, times.connect_s),
        timeout_s=min(PATIENCE_S, times.connect_s + times.headers_s),
    )
    if answer is None:
        return None
    status, lines, body = answer
    note_bytes(len(body))
    fields = (line.partition(":") for line in lines)
    return Answer(status, {name.strip().lower(): value.strip() for name, colon, value in fields if colon}, body)
