"""Requests about HTTP objects, on the session and event loop of fsspec's HTTP file system.

Guarantees: redirects follow the rules of `client/redirects.py`; each wait is bounded (`answer_times`) and each request
has three attempts at most; no cookie is kept, nothing is decompressed, and TLS is always verified. fsspec's own
requests are not used: they send the user's headers to any host that a redirect names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from streamer.backends.client.answer_times import answer_times
from streamer.backends.client.bounded_answers import BoundedResponse, allowing
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.ending_sockets import options_of_connector
from streamer.backends.client.error_requests import remove_request
from streamer.backends.client.proxy import environment_proxy
from streamer.backends.client.redirects import MAX_REDIRECTS, REDIRECTS, Hop, next_hop, too_many_redirects
from streamer.backends.client.retry import Attempts, is_transient
from streamer.backends.http.access import Access
from streamer.backends.http.errors import raise_connection_error, refusal
from streamer.core.errors import StorageError, StreamerError
from streamer.core.options.limits import Limits
from streamer.core.outages.transient import STATUSES
from streamer.core.secrets.urls import hidden_uri
from streamer.core.store.trust import trust_in

__all__ = ["HttpClient", "OpenResponse"]

T = TypeVar("T")

DEFAULT_LIMITS = Limits()
ATTEMPTS_IN_SILENCE = 2  # the second may reach another server behind the same address
IDLE_S = 1.0  # between two lookups; then the server may need the connections for the data, as some limit their number
ERROR_BODY_BYTES = 8 << 10  # an <Error> document is a few hundred bytes


@dataclass(frozen=True)
class OpenResponse:
    """A response whose body is not read yet.

    Attributes:
        response: The response of aiohttp; its receiver closes it.
        hop: URL and headers of its request, after all redirects.
    """

    response: aiohttp.ClientResponse = field(repr=False)  # its own `repr` shows the URL
    hop: Hop

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, in any case."""
        return self.response.headers


class HttpClient:
    """Sends GETs with one `Access`.

    Args:
        access: Certificates, proxy and time-outs. Its headers are not used here: each `Hop` has its own.
        refuse: Makes the error for an error status, as `refusal` does.
        limits: Bounds of the answers.

    Attributes:
        limits: The same.
    """

    def __init__(
        self, access: Access, refuse: Callable[..., StorageError] = refusal, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._access = access
        self._refuse = refuse
        self.limits = limits
        self._times = answer_times(limits, access.timeout.total if access.timeout else None)
        self._timeout = access.timeout or aiohttp.ClientTimeout(
            total=self._times.request_s, connect=self._times.connect_s, sock_read=self._times.silence_s
        )
        self._fs = HTTPFileSystem(get_client=_plain_session)

    @property
    def body_timeout(self) -> aiohttp.ClientTimeout:
        """The times of a request for a whole object: whoever reads the body bounds its pace."""
        longest_s = max(self._timeout.sock_read or 0.0, self.limits.stall_timeout_s + 1.0)
        return aiohttp.ClientTimeout(total=None, connect=self._timeout.connect, sock_read=longest_s)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of every request."""
        loop: asyncio.AbstractEventLoop = self._fs.loop
        return loop

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Run a coroutine function on the loop and wait for it; its exceptions pass through.

        fsspec's own `sync` would turn every time-out, ours too, into one of its own.
        """
        waiting = asyncio.run_coroutine_threadsafe(function(*arguments), self.loop)
        try:
            return waiting.result()
        except BaseException:  # Ctrl-C: nobody waits any more
            waiting.cancel()
            raise

    async def open(
        self, start: Hop, uri: str, extra: Mapping[str, str], timeout: aiohttp.ClientTimeout | None = None
    ) -> OpenResponse:
        """Send a GET, follow its redirects and return a successful response.

        Args:
            start: URL and headers of the first request.
            uri: The URL for messages, without secrets.
            extra: Headers that may be sent to any host.
            timeout: Used in place of the one for requests about objects.

        Raises:
            RedirectError: as for `next_hop`, or there are too many redirects.
            StorageError: the server or the network failed, or the response is an error.
        """
        attempts = Attempts(self._times)
        while True:
            try:
                with allowing(self.limits.answer_bytes, self._times, attempts.began_s):
                    opened = await self._follow(start, uri, extra, timeout or self._timeout)
                status = opened.response.status
                if status < 300:
                    return opened
                body = await _start_of(opened.response)
            except StreamerError:
                raise
            except Exception as error:
                remove_request(error)
                is_silent = isinstance(error, asyncio.TimeoutError) and attempts.number >= ATTEMPTS_IN_SILENCE
                if attempts.are_over or is_silent or not is_transient(error):
                    raise_connection_error(error, uri, attempts.number, attempts.elapsed_s)
                pause_s = 0.0
            else:
                pause_s = demanded_pause_s(status, opened.headers)
                if attempts.are_over or status not in STATUSES or pause_s > LONGEST_PAUSE_S:
                    facts = {"attempts": attempts.number, "elapsed_s": attempts.elapsed_s}
                    refused = self._refuse(status, opened.headers, body, uri, **facts)
                    refused.retry_after_s = pause_s
                    del opened, body  # they may repeat secrets, and a traceback shows the values of local names
                    raise refused
            await attempts.pause(pause_s)

    async def _follow(
        self, hop: Hop, uri: str, extra: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> OpenResponse:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(hop, extra, timeout)
            if response.status not in REDIRECTS:
                return OpenResponse(response, hop)
            location = hidden_uri(response.headers.get("Location", ""))
            await _finish(response)
            del response  # its text shows the URL, and a traceback shows the values of local names
            hop = next_hop(hop, location, uri, may_be_local=self._access.may_redirect_to_local)
        raise too_many_redirects(uri)

    async def _send(self, hop: Hop, extra: Mapping[str, str], timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        session: aiohttp.ClientSession = await self._fs.set_session()
        return await session.get(
            URL(hop.url, encoded=True),
            headers={**hop.headers, **extra, "Accept-Encoding": "identity"},
            allow_redirects=False,
            timeout=timeout,
            proxy=self._access.proxy or environment_proxy(hop.url),
            # aiohttp makes its own context when it is imported, and so ignores a later SSL_CERT_FILE.
            ssl=trust_in(self._access.ca_file or "") if hop.url.startswith("https:") else True,
        )


async def _plain_session(**options: Any) -> aiohttp.ClientSession:
    """Make a session that adds nothing to requests, and keeps nothing from answers.

    The number of connections is not limited: a file that is read in one stream holds one until its end.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, **options_of_connector())
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        response_class=BoundedResponse,
        **options,
    )


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Read the rest of a response where it is short, so that its connection is kept; otherwise close it."""
    if (response.content_length or 0) <= ERROR_BODY_BYTES and response.content_length is not None:
        await response.read()
    else:
        response.close()


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.read(ERROR_BODY_BYTES)
    finally:
        response.close()
