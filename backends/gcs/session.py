"""Sends requests and reads objects through gcsfs's own session, if it has options that the engine cannot use.

Guarantees: lookups and reads use the same session, with its certificates and its proxy, follow no redirect, and end
within their time. Errors belong to this package's tree, and repeat no part of a request. A read fills its whole buffer
with the requested range of the listed generation, or raises.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from fsspec.asyn import sync
from gcsfs.core import GCSFileSystem
from yarl import URL

from streamer.backends.client.answer_times import HOW_TO_WAIT, AnswerTimes
from streamer.backends.client.error_rows import (
    ErrorRow,
    ExceptionTable,
    address_in,
    is_unknown_host,
    refusal_of_proxy,
    row_for,
    unknown_host,
)
from streamer.backends.client.exchange import Response
from streamer.backends.client.proxy import environment_proxy
from streamer.backends.fsspec.instances import shared
from streamer.backends.gcs.errors import Answer, Caller, raise_storage_error, refusal
from streamer.backends.private_names.storage_clients import open_session, shows_certificate
from streamer.core.errors import (
    ChangedError,
    ConnectError,
    RangeResponseError,
    StorageError,
    TlsError,
    TransferTimeoutError,
    TruncatedError,
)
from streamer.core.store.certificates import trust_in
from streamer.core.store.sources import HttpSource, ObjectInfo

if TYPE_CHECKING:
    from streamer import _native

_CHECK = "Check the session_kwargs, endpoint_url and network"
_FAILURES: ExceptionTable[StorageError] = {
    (ssl.SSLError, aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch): ErrorRow(
        TlsError, "The TLS handshake failed", "Check the certificates of the connector in session_kwargs"
    ),
    (asyncio.TimeoutError, TimeoutError): ErrorRow(
        TransferTimeoutError, "The server did not answer in time", HOW_TO_WAIT
    ),
    (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError): ErrorRow(
        ConnectError, "No connection to the server", _CHECK
    ),
}

_HANDLE_RANGES = (
    "A proxy on the way may handle ranges wrongly: name the host in NO_PROXY, or leave out the session's options"
)


class GcsfsSession:
    """The session of one gcsfs file system."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._fs: GCSFileSystem = shared(self, GCSFileSystem, options, _close)
        # The URL that gcsfs sends requests to.
        self.endpoint: str = self._fs.base.removesuffix("/storage/v1/").rstrip("/")
        # The session has a client certificate of google-auth's configuration.
        self.shows_certificate = shows_certificate(self._fs)

    def send(
        self,
        source: HttpSource,
        times: AnswerTimes,
        *,
        most_bytes: int,
        method: str = "GET",
        body: bytes = b"",
        head_timeout_s: float | None = None,
        is_repeated: bool = False,
    ) -> Response:
        """Send one request, once, and receive its answer; a longer body ends at least one byte after `most_bytes`."""
        del is_repeated  # only relevant for the engine's connections
        head_s = times.connect_s + (times.headers_s if head_timeout_s is None else head_timeout_s)
        try:
            answer = sync(self._fs.loop, self._answer_to, source, times, head_s, most_bytes, method=method, body=body)
        except Exception as error:
            raise _failure(error) from None
        return Response(cast("_native.Exchange", answer), source.url, times)

    async def _answer_to(
        self, source: HttpSource, times: AnswerTimes, head_s: float, most_bytes: int, *, method: str, body: bytes
    ) -> _Answer:
        session = await open_session(self._fs)
        request = session.request(
            method,
            URL(source.url, encoded=True),
            data=body or None,
            headers=source.headers,
            timeout=aiohttp.ClientTimeout(total=times.request_s, connect=times.connect_s, sock_read=times.silence_s),
            allow_redirects=False,
            **self._trust(),
            **self._environment_proxy(),
        )
        async with await asyncio.wait_for(request, head_s) as response:
            answer = _Answer(response)
            while len(answer.body) <= most_bytes and (piece := await response.content.readany()):
                answer.body += piece
            return answer

    def _trust(self) -> dict[str, Any]:
        """Return the trust of ``SSL_CERT_FILE``, as the engine uses it; aiohttp reads it only when it is imported."""
        has_own = "connector" in self._fs.session_kwargs or self.shows_certificate
        return {} if has_own or not self.endpoint.startswith("https://") else {"ssl": trust_in()}

    def _environment_proxy(self) -> dict[str, Any]:
        """Return the proxy of ``HTTPS_PROXY``, unless the user's session names one or obeys the environment itself."""
        if self._fs.session_kwargs.keys() & {"proxy", "trust_env"}:
            return {}
        return {"proxy": environment_proxy(self.endpoint)}


class _Answer:
    """An answer that aiohttp received; it stands in for the engine's exchange in a `Response`."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = [f"{name}: {value}" for name, value in response.headers.items()]
        self.body = bytearray()

    @property
    def has_ended(self) -> bool:
        return not self.body

    def read_into(self, buffer: memoryview, timeout_s: float) -> tuple[int, None]:
        del timeout_s  # the body is complete
        count = min(len(buffer), len(self.body))
        buffer[:count] = self.body[:count]
        del self.body[:count]
        return count, None

    def close(self) -> None:
        self.body.clear()


def _failure(error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    if is_unknown_host(error):
        return unknown_host(error, None, _CHECK)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return refusal_of_proxy(error.status).error(None, status=error.status)
    row = row_for(error, _FAILURES)
    if row is None:
        return StorageError(f"The session of gcsfs failed with {type(error).__name__}", hint=_CHECK)
    return (row.after(address_in(error)) if row.cls is ConnectError else row).error(None)


async def _close(fs: GCSFileSystem) -> None:
    session: aiohttp.ClientSession | None = fs.session
    if session is None:
        return
    if "connector" in fs.session_kwargs:
        session.detach()  # the user owns the connector
    else:
        await session.close()


class RangeReader:
    """Reads one object, in any number of threads at a time."""

    def __init__(self, read: Callable[[int, int], Response], caller: Caller, info: ObjectInfo) -> None:
        self._read, self._caller, self._info = read, caller, info

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer with the object's bytes from an offset."""
        view = buffer.cast("B")
        if not len(view):
            return 0
        try:
            response = self._read(offset, offset + len(view))
        except Exception as error:
            raise_storage_error(error, self._info.uri)
        self._check(response, offset, offset + len(view))
        view[:] = memoryview(response.body)[: len(view)]
        return len(view)

    def _check(self, response: Response, begin: int, end: int) -> None:
        uri, generation = self._info.uri, response.headers.get("x-goog-generation")
        is_other = None not in (generation, self._info.version) and generation != self._info.version
        if response.status == 412 or is_other:
            raise ChangedError("The object was replaced since it was found", uri=uri, hint="Load again")
        if response.status == 200:
            raise _wrong_range("The server sends the whole object for a range", 200, uri)
        if response.status != 206:
            raise refusal(Answer.of(response), self._caller, uri)
        if not response.headers.get("content-range", "").startswith(f"bytes {begin}-{end - 1}/"):
            raise _wrong_range("The server sends another range than was asked for", 206, uri)
        if len(response.body) < end - begin:
            hint = "Load again; a proxy on the way may have cut the answer"
            raise TruncatedError("The answer ends too early", uri=uri, hint=hint)


def _wrong_range(what: str, status: int, uri: str) -> StorageError:
    return RangeResponseError(what, uri=uri, status=status, hint=_HANDLE_RANGES)
