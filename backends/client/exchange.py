"""One request over the engine's connections, and its answer. The client of every storage sends its requests with it.

Guarantees: a request uses the same certificates, proxy and user agent as reads of data, and leaves its connection open
for these reads. Each wait is bounded: for the connection and the head of the answer by `AnswerTimes`, for a body by
`BODY_S` and `silence_s`. No redirect is followed, nothing is decompressed, and a body is held only up to the size that
the caller allows.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from time import monotonic
from types import ModuleType

from streamer import _native
from streamer.backends.client.answer_times import BODY_S, AnswerTimes
from streamer.backends.client.answer_values import code_in, is_plain, parse_word
from streamer.backends.client.proxy import environment_proxy
from streamer.core.engine.native_errors import NO_FILE_HINT
from streamer.core.errors import StorageError, StreamerError
from streamer.core.outages.counters import note_bytes
from streamer.core.store.certificates import default_ca_file, trust_in
from streamer.core.store.sources import HttpSource, header_lines

PIECE_BYTES = 1 << 18
ERROR_BODY_BYTES = 8 << 10  # an <Error> document is a few hundred bytes
ERROR_BODY_WAIT_S = 1.0  # for the error body; a new connection costs less than a longer wait
LOOK_S = 0.2  # how often the received bytes are counted; error messages report the count


class Response:
    """An answer whose body may not be read yet. Only `send` makes one."""

    def __init__(self, exchange: _native.Exchange, url: str, times: AnswerTimes, *, has_body: bool = True) -> None:
        self._exchange, self._times, self._has_body = exchange, times, has_body
        self._url = url
        self._failure: _native.ReadError | None = None  # raised when all bytes that arrived before it were returned
        self.status = exchange.status  # HTTP status
        self.body = b""  # the bytes that `read`, `read_up_to` or `finish` received

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers by their names in lower case; values of one name are joined by commas (RFC 9110, 5.3)."""
        headers: dict[str, str] = {}
        for line in self._exchange.headers:
            name, colon, value = line.partition(":")
            name, value = name.strip().lower(), value.strip()
            if colon and headers.get(name, value) != value:
                value = f"{headers[name]}, {value}"
            headers[name] = value
        return headers

    @property
    def error_code(self) -> str | None:
        """The storage's code of an error in the header or in the body, as far as the body was read; None without."""
        if self.status < 300 and b"<Error" not in self.body[:ERROR_BODY_BYTES]:  # S3 may send an error under 200
            return None
        return parse_word(self.headers.get("x-ms-error-code")) or code_in(self.body)

    @property
    def has_ended(self) -> bool:
        """Whether the whole body was read."""
        return self._failure is None and self._exchange.has_ended

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        """Receive bytes of the body. The buffer stays partly empty if the body ends, or if the time is over."""
        count = 0
        if self._failure is None:
            count, self._failure = self._exchange.read_into(buffer, timeout_s)
            note_bytes(count)
        if self._failure is not None and not count:
            raise _failures().failure_of(self._failure, self._url)
        return count

    def read(self, most_bytes: int) -> bytes:
        """Receive the whole body."""
        body = self._received(most_bytes + 1, self._announced(most_bytes))
        if len(body) > most_bytes:
            raise _failures().too_long(self.status, most_bytes)
        self.body = body
        return bytes(body)

    def read_up_to(self, most_bytes: int) -> bytes:
        """Receive the body as `read` does, but at most `most_bytes`; a longer body is no error."""
        self.body = self._received(most_bytes, 0)
        return self.body

    def finish(self) -> bytes:
        """Receive a short body, such as an error document, or its start, and release the connection.

        A connection that fails meanwhile is no error, because the head of the answer suffices.
        """
        start, count = memoryview(bytearray(ERROR_BODY_BYTES)), 0
        with suppress(StreamerError):
            count = self.read_into(start, ERROR_BODY_WAIT_S)
        self.close()
        self.body = bytes(start[:count])
        return self.body

    def close(self) -> None:
        """Release the connection; it is closed unless the body has ended."""
        self._exchange.close()

    def _announced(self, most_bytes: int) -> int:
        length = self.headers.get("content-length", "")
        announced = int(length) if length.isascii() and length.isdigit() else 0
        if announced > most_bytes and not self.has_ended:  # the answer to a HEAD has a length and no body
            self.close()
            raise _failures().too_long(self.status, most_bytes)
        return announced

    def _received(self, wanted: int, announced: int) -> bytes:
        if self._has_body and self.status < 300 and not is_plain(self.headers):
            self.close()
            raise _failures().compressed(self.status)
        body = bytearray()
        heard_at = began_at = monotonic()
        while len(body) < wanted and not self.has_ended:
            piece = memoryview(bytearray(min(wanted - len(body), max(PIECE_BYTES, announced))))
            count = self.read_into(piece, LOOK_S)
            body += piece[:count]
            now = monotonic()
            heard_at = now if count else heard_at
            if not self.has_ended and (now - began_at > BODY_S or now - heard_at > self._times.silence_s):
                self.close()
                raise _failures().too_slow() if now - began_at > BODY_S else _failures().silent()
        return bytes(body)


def _failures() -> ModuleType:
    try:
        from streamer.backends.client import failures  # noqa: PLC0415 (most requests succeed)
    except OSError as error:  # no file can be opened now; as after a request that fails for that reason
        code = errno.errorcode.get(error.errno or 0)
        raise StorageError(
            "The request failed, and so did the search for its reason", code=code, hint=NO_FILE_HINT
        ) from error
    return failures


def _kind_of(source: HttpSource, method: str) -> list[str]:
    """Return a Content-Type for an upload whose headers have none: otherwise libcurl would send the type of a form."""
    if method == "DELETE":  # it has no body, and a signature may cover the headers, so no Content-Type is sent
        return ["Content-Type:"]
    is_named = method in ("GET", "HEAD") or any(name.lower() == "content-type" for name in source.headers)
    return [] if is_named else ["Content-Type: application/octet-stream"]


def send(
    source: HttpSource,
    times: AnswerTimes,
    *,
    method: str = "GET",
    body: bytes | memoryview = b"",
    head_timeout_s: float | None = None,
    is_repeated: bool = False,
    ca_option: str = "",
) -> Response:
    """Send one request, once.

    If it failed before (`is_repeated`), it opens a new connection; a body is sent from where it lies.
    """
    # Also refuses a proxy that cannot be used; libcurl reads the variables itself.
    proxy = source.proxy or environment_proxy(source.url) or ""
    exchange = _native.Exchange(
        _native.HttpTarget(
            url=source.url,
            headers=[*_kind_of(source, method), *header_lines(source.headers)],
            ca_file=source.ca_file or default_ca_file(),
            proxy=source.proxy or "",
            expires_at_s=0.0,
            renew_at_s=0.0,
            client_cert=source.client_cert or "",
            client_key=source.client_key or "",
        ),
        method=method,
        body=body,
        connect_timeout_s=times.connect_s,
        head_timeout_s=times.headers_s if head_timeout_s is None else head_timeout_s,
        is_repeated=is_repeated,
    )
    failure = exchange.receive_head()
    if failure is not None:
        if failure.code == "tls":
            trust_in(source.ca_file or "")  # raises if the file of the certificates cannot be used
        raise _failures().failure_of(failure, source.url, exchange, ca_option, proxy)
    response = Response(exchange, source.url, times, has_body=method != "HEAD")
    if "," in response.headers.get("content-length", ""):
        response.close()
        raise _failures().ambiguous(response.status)
    return response
