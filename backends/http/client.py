"""Sends requests to a web server, GETs and requests that change an object, by the options of fsspec's HTTP file system.

Guarantees: redirects follow the rules of `client/redirects.py`; each wait is bounded (`answer_times`) and each
request has three attempts at most. The options become plain headers, a CA file and a proxy for the engine. Refuses
headers that would break reading by ranges, and line ends in headers.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from streamer.backends.client.answer_times import AnswerTimes, named_times
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.option_checks import timeout_of
from streamer.backends.client.proxy import named_proxy
from streamer.backends.client.redirects import (
    KEEPING_METHOD,
    MAX_REDIRECTS,
    REDIRECTS,
    Hop,
    next_hop,
    too_many_redirects,
)
from streamer.backends.client.request_headers import basic_authorization, check_headers, login_of, own_headers
from streamer.backends.client.retry import Attempts, answered, demanded_pause_s
from streamer.backends.http.errors import refusal
from streamer.core.errors import OptionError, StorageError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import is_blank, variable
from streamer.core.secrets.texts import note_credential
from streamer.core.store.certificates import trust_in
from streamer.core.store.sources import HttpSource

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class Access:
    """Options of the requests to one server."""

    # Headers for the server that the user named, and for no other.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None  # PEM bundle to trust instead of the system's
    # URL of the proxy with its password; None uses the proxy of the environment.
    proxy: str | None = field(default=None, repr=False)
    timeout: aiohttp.ClientTimeout | None = None  # time-out of requests about objects; None uses those of `Options`
    is_encoded: bool = False  # URLs of the user are already quoted
    may_redirect_to_local: bool = False  # redirects may lead to loopback and link-local addresses


def access_of(url: str, options: Mapping[str, Any]) -> Access:
    """Turn the arguments of `HTTPFileSystem` into an `Access`.

    Logins win in this order: ``headers``, ``auth``, the same options in ``client_kwargs``, a user in the URL, and, if
    ``trust_env`` allows it, a netrc file.
    """
    client = options.get("client_kwargs") or {}
    logins = {"netrc": _netrc_login(url) if client.get("trust_env") else None, "url": _login_in(url)}
    headers: dict[str, str] = {}
    for name in logins:
        headers.update(_login_headers(logins, name))
    for source in (client, options):
        headers.update(_login_headers(source, "auth"))
        headers.update(_cookie_headers(source))
        headers.update(own_headers(source))
    if logins["netrc"]:
        note_credential(logins["netrc"][1])
        note_credential(headers.get("authorization"))
    check_headers(headers)
    return Access(
        headers={name: headers[name] for name in sorted(headers)},
        ca_file=_ca_file(options.get("verify")),
        proxy=named_proxy(options) or named_proxy(client),
        timeout=timeout_of(options.get("timeout") or client.get("timeout"), "timeout"),
        is_encoded=bool(options.get("encoded")),
        may_redirect_to_local=options.get("local_redirects") is True,
    )


def _login_headers(source: Mapping[str, Any], name: str) -> dict[str, str]:
    if source.get(name) is None:
        return {}
    if login_of(source[name]) is None:
        raise OptionError("auth must be aiohttp.BasicAuth or a pair (user, password)")
    return {"authorization": basic_authorization(source[name]) or ""}


def _login_in(url: str) -> tuple[str, str] | None:
    user, has_user, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    return (unquote(name), unquote(password)) if has_user else None


def _netrc_login(url: str) -> tuple[str, str] | None:
    try:
        entry = netrc.netrc(variable("NETRC")).authenticators(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return (entry[0], entry[2] or "") if entry else None


def _cookie_headers(source: Mapping[str, Any]) -> dict[str, str]:
    if not source.get("cookies"):
        return {}
    if not isinstance(source["cookies"], Mapping):
        raise OptionError("cookies must be a mapping of names to values")
    return {"cookie": "; ".join(f"{name}={value}" for name, value in source["cookies"].items())}


def _ca_file(verify: Any) -> str | None:
    if verify in (None, True):
        return None
    if not isinstance(verify, (str, os.PathLike)) or is_blank(os.fspath(verify)):
        raise OptionError("verify must name a PEM file with the certificates to trust")
    trust_in(os.fspath(verify))  # raises if the file cannot be used
    return os.fspath(verify)


DEFAULT_LIMITS = Limits()
CA_OPTION = "storage_options={'verify': '/path/ca.pem'}"


@dataclass(frozen=True)
class OpenResponse:
    """A successful response whose body is not read yet."""

    response: Response  # the response; its receiver closes it
    hop: Hop  # URL and headers of its request, after all redirects

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, by names in lower case."""
        return self.response.headers


@dataclass
class _Route:
    """The latest hop of one request, which changes with each redirect."""

    hop: Hop = field(repr=False)


class HttpClient:
    """Sends requests with one `Access`."""

    def __init__(
        self, access: Access, refuse: Callable[..., StorageError] = refusal, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._access = access
        self._refuse = refuse
        self.limits = limits  # the argument
        self._times = named_times(limits, access.timeout)

    def open(
        self, start: Hop, uri: str, extra: Mapping[str, str], receive: Callable[[Response], None] | None = None
    ) -> OpenResponse:
        """Send a GET, follow its redirects return a successful response, which `receive` receives."""
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
            location = response.headers.get("location", "")
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
