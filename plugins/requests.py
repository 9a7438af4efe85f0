"""Requests of a plug-in about its objects: listings, logins, uploads. The bytes of objects are read through sources.

Guarantees: a request has the certificates, proxy, user agent and time-outs of the engine's reads, and at most three
attempts after failures that may pass. No redirect is followed. Credentials in its headers are masked in errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.exchange import ERROR_BODY_BYTES
from streamer.backends.client.retry import demanded_pause_s, whole_answer
from streamer.backends.http.errors import refusal
from streamer.core.errors import StorageError
from streamer.core.options.limits import Limits
from streamer.core.secrets.texts import note_credential
from streamer.core.store.sources import HttpSource

DEFAULT_LIMITS = Limits()
_CREDENTIALS = ("authorization", "x-amz-s3session-token", "x-amz-security-token", "cookie")


@dataclass(frozen=True)
class HttpAnswer:
    """The whole answer to a request, of any status.

    Attributes:
        status: Its HTTP status.
        headers: Its headers by names in lower case.
        body: Its body.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    _attempts: int = field(default=1, repr=False)

    def error(self, uri: str) -> StorageError:
        """Make the error of this package for an unsuccessful answer, which may be changed before it is raised."""
        start = self.body[:ERROR_BODY_BYTES]
        error = refusal(self.status, self.headers, start, uri, attempts=self._attempts)
        error.retry_after_s = demanded_pause_s(self.status, self.headers)
        return error


def send_request(
    source: HttpSource,
    uri: str,
    method: str = "GET",
    body: bytes | memoryview = b"",
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> HttpAnswer:
    """Send a request, and receive its whole answer.

    Args:
        source: Where to, with which headers and certificates.
        uri: The object for messages, without secrets.
        method: The method of HTTP.
        body: What is sent.
        limits: Bounds of the answer; the hook ``streamer_open_store`` gets them.

    Raises:
        ConnectError: the server cannot be reached.
        StorageError: the answer is too large, too slow or malformed.
    """
    for name, value in source.headers.items():
        if name.lower() in _CREDENTIALS:
            note_credential(value)
    times, most_bytes = answer_times(limits), limits.answer_bytes
    response, attempts = whole_answer(source, times, uri, method, body, most_bytes=most_bytes, check=None)
    response.close()
    return HttpAnswer(response.status, response.headers, response.body, attempts.number)
