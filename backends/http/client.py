"""Sends requests to a web server: GETs, and requests that change an object.

Guarantees: redirects follow the rules of `client/redirects.py`; each wait is bounded (`answer_times`) and each
request has three attempts at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamer.backends.client.answer_times import AnswerTimes, named_times
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.redirects import (
    KEEPING_METHOD,
    MAX_REDIRECTS,
    REDIRECTS,
    Hop,
    next_hop,
    too_many_redirects,
)
from streamer.backends.client.retry import Attempts, answered, demanded_pause_s
from streamer.backends.http.access import Access
from streamer.backends.http.errors import refusal
from streamer.core.errors import StorageError
from streamer.core.options.limits import Limits
from streamer.core.secrets.hidden_arguments import hidden_uri
from streamer.core.store.sources import HttpSource

__all__ = ["HttpClient", "OpenResponse"]

DEFAULT_LIMITS = Limits()
CA_OPTION = "storage_options={'verify': '/path/ca.pem'}"


@dataclass(frozen=True)
class OpenResponse:
    """A successful response whose body is not read yet.

    Attributes:
        response: The response; its receiver closes it.
        hop: URL and headers of its request, after all redirects.
    """

    response: Response
    hop: Hop

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, by names in lower case."""
        return self.response.headers


@dataclass
class _Route:
    """The latest hop of one request, which changes with each redirect."""

    hop: Hop = field(repr=False)


class HttpClient:
    """Sends requests with one `Access`.

    Attributes:
        limits: The argument.
    """

    def __init__(
        self, access: Access, refuse: Callable[..., StorageError] = refusal, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._access = access
        self._refuse = refuse
        self.limits = limits
        self._times = named_times(limits, access.timeout)

    def open(
        self, start: Hop, uri: str, extra: Mapping[str, str], receive: Callable[[Response], None] | None = None
    ) -> OpenResponse:
        """Send a GET, follow its redirects and return a successful response.

        Args:
            start: URL and headers of the first request.
            uri: The URL for messages.
            extra: More headers.
            receive: Receives the body of a successful response, which is closed then; if it may pass, it is retried.
        """
        route = _Route(start)

        def request(attempts: Attempts) -> Response:
            response = self._follow(route, start, uri, extra, attempts)
            if receive is not None and response.status < 300:
                try:
                    receive(response)
                finally:
                    response.close()
            return response

        response, attempts = answered(request, self._times, uri)
        if response.status < 300:
            return OpenResponse(response, route.hop)
        facts = {"attempts": attempts.number, "elapsed_s": attempts.elapsed_s}
        refused = self._refuse(response.status, response.headers, response.finish(), uri, **facts)
        refused.retry_after_s = demanded_pause_s(response.status, response.headers)
        raise refused

    def change(
        self, method: str, hop: Hop, extra: Mapping[str, str], uri: str, body: bytes | memoryview = b""
    ) -> tuple[Response, Attempts]:
        """Send a ``PUT`` or ``DELETE``, and return the answer, of any status.

        Redirects that keep method and body are followed (307, 308: RFC 9110, 15.4). Others ask for a GET of another
        page, so they are an answer.
        """
        times = self._times.with_upload(len(body))
        request = {"times": times, "method": method, "body": body}

        def send_on(attempts: Attempts) -> Response:
            return self._follow(_Route(hop), hop, uri, extra, attempts, followed=KEEPING_METHOD, **request)

        return answered(send_on, times, uri)

    def _follow(
        self,
        route: _Route,
        start: Hop,
        uri: str,
        extra: Mapping[str, str],
        attempts: Attempts,
        *,
        followed: Collection[int] = REDIRECTS,
        **request: Any,
    ) -> Response:
        route.hop = start
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(route.hop, extra, attempts, **request)
            if response.status not in followed:
                return response
            location = hidden_uri(response.headers.get("location", ""))
            response.finish()  # so that its connection is kept
            route.hop = next_hop(route.hop, location, uri, may_be_local=self._access.may_redirect_to_local)
        raise too_many_redirects(uri)

    def _send(
        self,
        hop: Hop,
        extra: Mapping[str, str],
        attempts: Attempts,
        *,
        times: AnswerTimes | None = None,
        method: str = "GET",
        body: bytes | memoryview = b"",
    ) -> Response:
        return send(
            HttpSource(hop.url, {**hop.headers, **extra}, ca_file=self._access.ca_file, proxy=self._access.proxy),
            times or self._times,
            method=method,
            body=body,
            head_timeout_s=attempts.head_timeout_s,
            is_repeated=attempts.is_repeated,
            ca_option=CA_OPTION,
        )
