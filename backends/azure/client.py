"""The Azure control plane: requests about blobs over the engine's connections, signed here.

Guarantees: a request ends within three attempts and the time of `answer_times`, a login within 30 s; no redirect is
followed, and nothing is decompressed. Refuses unverified TLS, and options that name another account than the URL.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import formatdate
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from streamer.backends.azure.errors import (
    RequestTarget,
    malformed_answer,
    malformed_credential,
    name_account,
    raise_login_error,
    refusal,
)
from streamer.backends.azure.login import VERSION, login_of
from streamer.backends.azure.options import filled_options
from streamer.backends.azure.urls import AzureUrl
from streamer.backends.blob_urls import is_azure_host
from streamer.backends.client.answer_times import ATTEMPTS, answer_times
from streamer.backends.client.answer_values import refuse_cut
from streamer.backends.client.exchange import Response, send
from streamer.backends.client.proxy import check_proxy, environment_proxy
from streamer.backends.client.retry import Attempts, whole_answer
from streamer.core.errors import OptionError, StreamerError, TruncatedError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.texts import note_credential
from streamer.core.store.certificates import trust_in
from streamer.core.store.sources import HttpSource

# Long enough for requests that are in flight while the signature is renewed; short, so that a leaked URL soon expires.
SIGNATURE_LIFETIME_S = 600
CLOCK_SKEW_S = 300  # a server whose clock is behind would refuse a signature that begins now

DEFAULT_LIMITS = Limits()
# `DefaultAzureCredential` tries a dozen places, among them an address that answers on Azure's own machines only.
LOGIN_TIMEOUT_S = 30
TOKEN_RESERVE_S = 300  # renews a token this long before it expires, as azure-identity does; a new one takes a second
TOKEN_SCOPE = "https://storage.azure.com/.default"  # noqa: S105  (a name, the same in all clouds)

_SEND = partial(send, ca_option="storage_options={'connection_verify': '/path/ca.pem'}")
_NOTHING: Mapping[str, str] = {}

if find_spec("adlfs") is None:  # raise now, rather than when the first login needs adlfs
    raise ModuleNotFoundError("No module named 'adlfs'", name="adlfs")


@dataclass(frozen=True)
class Grant:
    """A URL and headers that read one blob."""

    url: str = field(repr=False)  # the blob's URL; its query may be a SAS
    headers: Mapping[str, str] = field(repr=False)  # headers of every request
    expires_at_s: float | None = None  # Unix time at which URL or headers expire; None if only Azure can tell
    may_be_renewed: bool = True  # the next grant may have another signature or token


class AzureClient:
    """Sends requests about blobs, and makes the URLs and headers that read them, with one login."""

    def __init__(self, url: AzureUrl, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        environment = set_variables()
        self._options = options = filled_options(url, storage_options, environment)
        self._login = login_of(self, options, environment)
        self._last_token: Any = None
        self._one_login = asyncio.Lock()
        self.endpoint = self._login.endpoint
        _check_account(url, self._login.account)
        verify, retries = options.get("connection_verify"), options.get("retry_total")
        self.ca_file = os.fspath(verify) if isinstance(verify, (str, os.PathLike)) else None
        trust_in(self.ca_file or "")  # raises if the file cannot be used
        times = answer_times(limits, options.get("read_timeout"))
        self.times = replace(times, connect_s=options.get("connection_timeout") or times.connect_s)
        self._most_attempts = ATTEMPTS if retries is None else 1 + int(retries)
        self._most_bytes = limits.answer_bytes
        self._proxies: Mapping[str, str] = options.get("proxies") or {}
        _check_proxies(self._proxies, self.endpoint)
        # The option `timeout` of adlfs is a limit of Azure's own; reads of data have the times of `Options`.
        self._of_requests = {"timeout": str(options["timeout"])} if options.get("timeout") else {}

    def ask(
        self,
        method: str,
        path: str,
        uri: str,
        query: Mapping[str, str] = _NOTHING,
        *,
        headers: Mapping[str, str] = _NOTHING,
        body: bytes = b"",
    ) -> Response:
        """Send a request about a container, or a blob (``container/name``); return its whole, successful answer."""
        request = self._request(uri, path)
        headers = {"Content-Length": str(len(body)), **headers} if method == "PUT" else headers
        source = self._signed(method, path, request, {**query, **self._of_requests}, headers)
        how: dict[str, Any] = {"most_bytes": self._most_bytes, "most": self._most_attempts, "sender": _SEND}
        try:
            response, attempts = whole_answer(
                source, self.times, uri, method, body, check=partial(_refuse_cut, query), **how
            )
        except StreamerError as error:
            name_account(error, request)
            raise
        return _successful(method, response, request, attempts)

    def proxy(self, url: str) -> str | None:
        """Return the proxy that the options name for this URL; the longest prefix wins."""
        return next((self._proxies[key] for key in sorted(self._proxies, reverse=True) if url.startswith(key)), None)

    def grant(self, path: str, uri: str) -> Grant:
        """Return a URL that reads one blob: signed by the account key, with the user's SAS, or with a token header."""
        login, url, headers = self._login, self._url(path), {"x-ms-version": VERSION}
        if login.key is not None:
            end_s = int(time.time()) + SIGNATURE_LIFETIME_S
            try:
                signed = login.signed_query(path, end_s - SIGNATURE_LIFETIME_S - CLOCK_SKEW_S, end_s)
            except ValueError:
                raise malformed_credential(self._request(uri, path)) from None
            return Grant(f"{url}?{signed}", headers, float(end_s))
        if login.has_token:
            token = self._token(self._request(uri, path))
            return Grant(url, {**headers, "Authorization": f"Bearer {token.token}"}, float(token.expires_on))
        if login.sas:
            return Grant(f"{url}?{login.sas}", headers, may_be_renewed=False)
        if login.credential is not None:  # an `AzureSasCredential`, whose owner may update it
            sas = login.current_sas
            expires_at_s = _expiry_of(sas)
            # Only Azure's clock decides whether a SAS has ended: this machine's may be ahead.
            is_early = expires_at_s is not None and expires_at_s > time.time()
            return Grant(f"{url}?{sas}", headers, expires_at_s if is_early else None)
        return Grant(url, headers, may_be_renewed=False)

    def login_identity(self) -> str:
        """Return what the login adds to the identity of a blob; empty if another process cannot have the login."""
        from streamer.backends.login_state import login_identity  # noqa: PLC0415 (a plain load compares none)

        # Azure's own hosts are accounts, and each name in one has the same bytes for every login that may read it.
        return "azure" if is_azure_host(urlsplit(self.endpoint).netloc) else login_identity(self._options)

    def _url(self, path: str) -> str:
        return f"{self.endpoint}/{quote(path, safe='~/')}"

    def _signed(
        self,
        method: str,
        path: str,
        request: RequestTarget,
        query: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> HttpSource:
        """Return the source of a request with its signature, SAS or token."""
        login, url = self._login, self._url(path)
        kind = {"Content-Type": "application/octet-stream"} if method == "PUT" else {}
        headers = {"x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True), **kind, **headers}
        if login.has_token:
            headers["Authorization"] = f"Bearer {self._token(request).token}"
        elif login.key is not None:
            try:
                headers["Authorization"] = login.authorization(method, url, query, headers)
            except ValueError:
                raise malformed_credential(request) from None
        whole = "&".join(each for each in (urlencode(query, quote_via=quote), login.current_sas) if each)
        headers.pop("Content-Length", None)  # libcurl sends it
        return HttpSource(f"{url}?{whole}" if whole else url, headers, ca_file=self.ca_file, proxy=self.proxy(url))

    def _token(self, request: RequestTarget) -> Any:
        from fsspec.asyn import get_loop, sync  # noqa: PLC0415 (keys and SAS need none)

        try:
            return sync(get_loop(), self._get_token)
        except Exception as error:
            raise_login_error(error, request)

    async def _get_token(self) -> Any:
        async with self._one_login:
            if self._last_token is None or self._last_token.expires_on < time.time() + TOKEN_RESERVE_S:
                pending = self._login.credential.get_token(TOKEN_SCOPE)
                if not inspect.isawaitable(pending):
                    raise TypeError
                self._last_token = await asyncio.wait_for(pending, LOGIN_TIMEOUT_S)
            note_credential(self._last_token.token)
            return self._last_token

    def _request(self, uri: str, path: str) -> RequestTarget:
        login, sas = self._login, self._login.current_sas
        named = "account key" if login.key is not None else "SAS" if sas else None
        return RequestTarget(
            uri=uri,
            container=path.partition("/")[0],
            account=login.account,
            credential="token" if login.has_token else named,
            sas_expires_at_s=_expiry_of(sas),
        )


def _successful(method: str, response: Response, request: RequestTarget, attempts: Attempts) -> Response:
    if response.status >= 300:
        raise refusal(response, request, attempts)
    if method == "HEAD" and not response.headers.get("etag"):  # every blob has one, so a proxy answers
        raise malformed_answer(response, request.uri)
    return response


def _check_account(url: AzureUrl, account: str | None) -> None:
    named = (url.account or "").removesuffix("-secondary")
    # The SDK takes everything before `.blob.` for the account, including `privatelink` and the DNS zone.
    if named and account and named != account.partition(".")[0]:
        raise OptionError(
            f"The URL names account {named!r}, but the connection string names another account",
            uri=url.uri_of(url.name),
            hint="Leave out connection_string and AZURE_STORAGE_CONNECTION_STRING, or the account in the URL",
        )


def _check_proxies(named: Mapping[str, str], endpoint: str) -> None:
    """Refuse a proxy that cannot be used. The options name the proxies; if they name none, the environment does."""
    for proxy in named.values():
        check_proxy(str(proxy))
    if not named:
        environment_proxy(endpoint)


def _refuse_cut(query: Mapping[str, str], body: bytes) -> None:
    """Refuse a document without its end; a page of a listing always names the next page, or none (``NextMarker``)."""
    if "comp" not in query:  # the answer is a blob
        return
    refuse_cut(body)
    if query["comp"] == "list" and b"</EnumerationResults>" in body and b"<NextMarker" not in body:
        hint = "Load again; if that fails, check account_host and the proxy on the way to it"
        raise TruncatedError("Azure's listing does not say whether more follows (NextMarker)", hint=hint)


def _expiry_of(sas: str) -> float | None:
    """Return the Unix time at which a SAS expires; None if a stored access policy holds the time."""
    expiry = parse_qs(sas.lstrip("?")).get("se", [""])[0]
    try:
        parsed = datetime.fromisoformat(expiry.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()
