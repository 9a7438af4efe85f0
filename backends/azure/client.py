"""The Azure control plane: the service client of one adlfs instance, called on the event loop of that.

Guarantees: a request ends within three attempts and the time of `answer_times`, a login within 30 s; no redirect is
followed. Refuses unverified TLS, and another account than the URL names. The methods of adlfs are not called, as its
listing cache may be stale; and the service client's own retries are not used, as they wait 15 s and more.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from adlfs import AzureBlobFileSystem
from azure.storage.blob import BlobSasPermissions, generate_blob_sas
from fsspec.asyn import sync

from streamer.backends.azure.errors import (
    LoginFailedError,
    Request,
    after_answer,
    is_transient,
    raise_storage_error,
)
from streamer.backends.azure.file_system import AzureFileSystem
from streamer.backends.azure.options import filled_options
from streamer.backends.azure.urls import AzureUrl
from streamer.backends.client.answer_times import ATTEMPTS, AnswerTimes, answer_times
from streamer.backends.client.bounded_answers import allowing, bind
from streamer.backends.client.demanded_pause import LONGEST_PAUSE_S, demanded_pause_s
from streamer.backends.client.proxy import check_proxy, environment_proxy
from streamer.backends.client.retry import Attempts
from streamer.backends.fsspec.instances import shared
from streamer.backends.metadata_servers import ask_azure_directly
from streamer.backends.private_names.azure import transport_of_service
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.texts import note_credential
from streamer.core.store.trust import trust_in

__all__ = ["AzureClient", "Grant"]

# Long enough for the requests in flight while it is renewed, short enough to make a leaked URL worth little.
SIGNATURE_LIFETIME_S = 600
CLOCK_SKEW_S = 300  # a server whose clock is behind would refuse a signature that begins now

DEFAULT_LIMITS = Limits()
# `DefaultAzureCredential` tries a dozen places, among them an address that answers on Azure's own machines only.
LOGIN_TIMEOUT_S = 30
TOKEN_RESERVE_S = 300  # as in azure-identity; some of its credentials run a program for a second to get a token
TOKEN_SCOPE = "https://storage.azure.com/.default"  # noqa: S105  (a name, the same in all clouds)

_Answer = TypeVar("_Answer")
_Send = Callable[[Any, Mapping[str, Any]], Awaitable[_Answer]]


@dataclass(frozen=True)
class Grant:
    """A URL and headers that read one blob.

    Attributes:
        url: The blob's URL; its query may be a SAS.
        headers: Headers of every request.
        expires_at_s: Unix time at which URL or headers expire, where they can be renewed; otherwise None.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    expires_at_s: float | None = None


class _FailedError(Exception):
    """Carries an error through `fsspec.asyn.sync`, which replaces any `TimeoutError`."""

    def __init__(self, error: Exception, attempts: int, elapsed_s: float = 0.0) -> None:
        super().__init__()
        self.error, self.attempts, self.elapsed_s = error, attempts, elapsed_s


class AzureClient:
    """Sends requests about blobs, and gives the URLs and headers that read them, with one adlfs instance.

    Args:
        url: The URL to open, with account, host and SAS.
        storage_options: Arguments of `adlfs.AzureBlobFileSystem`, and ``connection_verify``, ``proxies`` and
            ``retry_total`` of Azure's own clients.
        limits: Bounds of Azure's answers.

    Attributes:
        ca_file: The certificates that the options name, or None.

    Raises:
        OptionError: an option that is refused, or that adlfs cannot use.
    """

    def __init__(self, url: AzureUrl, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        options = filled_options(url, storage_options, set_variables())
        try:
            self._fs = shared(self, AzureFileSystem, options, _close)
        except Exception as error:
            raise OptionError(
                f"adlfs refuses the storage options: {type(error).__name__}",
                hint="Check connection_string, or account_name and one of account_key, sas_token and credential",
            ) from None  # its text may repeat the options
        self._service: Any = self._fs.service_client
        self.endpoint = str(self._service.url).partition("?")[0].rstrip("/")  # the query may be a SAS
        if options.get("credential") is None and hasattr(self._service.credential, "get_token"):
            ask_azure_directly(self._service.credential)
        self._last_token: Any = None
        self._one_login = asyncio.Lock()
        _check_account(url, self._service.account_name)
        verify = options.get("connection_verify")
        self.ca_file = os.fspath(verify) if isinstance(verify, (str, os.PathLike)) else None
        self._proxies: Mapping[str, str] = options.get("proxies") or {}
        _check_proxies(self._proxies, self.endpoint)
        retries = options.get("retry_total")
        self._most_attempts = ATTEMPTS if retries is None else 1 + int(retries)
        self._times = answer_times(limits, options.get("read_timeout"))
        self._request_options = _request_options(options, self.ca_file, self._times)

    def call(self, send: _Send[_Answer], uri: str, container: str) -> _Answer:
        """Await ``send(service_client, request_options)``, and again after a transient failure.

        Raises:
            StorageError: and its subclasses, for failures of Azure, the network or the login.
        """
        try:
            answer: _Answer = sync(self._fs.loop, self._retried, send)
        except _FailedError as failed:
            raise_storage_error(failed.error, self._request(uri, container), failed.attempts, failed.elapsed_s)
        return answer

    def grant(self, container: str, name: str, uri: str) -> Grant:
        """Return a URL of one blob that is signed with the account key, or one with the user's SAS or a current token.

        Raises:
            CredentialsError: the account key is malformed, or there is no token.
        """
        credential = self._service.credential
        url: str = self._service.get_blob_client(container, name).url
        # Without it Azure answers an anonymous request as in 2009, with ETags without quotes.
        headers = {"x-ms-version": str(self._service.api_version)}
        if hasattr(credential, "account_key"):
            ends_at_s = int(time.time()) + SIGNATURE_LIFETIME_S
            return Grant(f"{url}?{self._signed(container, name, uri, ends_at_s)}", headers, float(ends_at_s))
        if hasattr(credential, "get_token"):
            token = self._token(uri, container)
            return Grant(url, {**headers, "Authorization": f"Bearer {token.token}"}, float(token.expires_on))
        if hasattr(credential, "signature"):  # an `AzureSasCredential`, whose owner may update it
            sas = str(credential.signature).lstrip("?")
            return Grant(f"{url}?{sas}", headers, _expiry_of(sas))
        return Grant(url, headers)

    def proxy(self, url: str) -> str | None:
        """Return the proxy that the options name for this URL; the longest prefix wins."""
        return next((self._proxies[key] for key in sorted(self._proxies, reverse=True) if url.startswith(key)), None)

    def _signed(self, container: str, name: str, uri: str, ends_at_s: int) -> str:
        credential = self._service.credential
        try:
            return str(
                generate_blob_sas(
                    credential.account_name,
                    container,
                    name,
                    account_key=credential.account_key,
                    permission=BlobSasPermissions(read=True),
                    start=datetime.fromtimestamp(ends_at_s - SIGNATURE_LIFETIME_S - CLOCK_SKEW_S, timezone.utc),
                    expiry=datetime.fromtimestamp(ends_at_s, timezone.utc),
                    protocol="https" if self._service.scheme == "https" else None,
                )
            )
        except Exception as error:
            raise_storage_error(error, self._request(uri, container))

    def _token(self, uri: str, container: str) -> Any:
        try:
            return sync(self._fs.loop, self._get_token)
        except _FailedError as failed:
            raise_storage_error(failed.error, self._request(uri, container), failed.attempts, failed.elapsed_s)

    async def _retried(self, send: _Send[_Answer]) -> _Answer:
        if hasattr(self._service.credential, "get_token"):
            await self._get_token()  # the service client would wait for it without a time-out
        transport = transport_of_service(self._service)
        await transport.open()
        bind(transport.session)
        attempts = Attempts(self._times, self._most_attempts)
        while True:
            with allowing(self._limits.answer_bytes, self._times, attempts.began_s) as allowance:
                try:
                    return await asyncio.wait_for(send(self._service, self._request_options), self._times.request_s)
                except Exception as error:
                    pause_s = _pause_after(error)
                    if attempts.are_over or not is_transient(error) or pause_s > LONGEST_PAUSE_S:
                        failure = after_answer(error) if allowance.has_answer else error
                        raise _FailedError(failure, attempts.number, attempts.elapsed_s) from None
            await attempts.pause(pause_s)

    async def _get_token(self) -> Any:
        async with self._one_login:
            if self._last_token is None or self._last_token.expires_on < time.time() + TOKEN_RESERVE_S:
                self._last_token = await self._new_token()
            note_credential(self._last_token.token)
            return self._last_token

    async def _new_token(self) -> Any:
        try:
            pending = self._service.credential.get_token(TOKEN_SCOPE)
            if not inspect.isawaitable(pending):
                raise TypeError
            return await asyncio.wait_for(pending, LOGIN_TIMEOUT_S)
        except Exception as error:
            failed = LoginFailedError()
            failed.__cause__ = error
            raise _FailedError(failed, 1) from None

    def _request(self, uri: str, container: str) -> Request:
        credential = self._service.credential
        sas = urlsplit(self._service.url).query or str(getattr(credential, "signature", ""))
        named = "account key" if hasattr(credential, "account_key") else "SAS" if sas else None
        return Request(
            uri=uri,
            container=container,
            account=self._service.account_name,
            host=self._service.primary_hostname.partition("/")[0],
            credential="token" if hasattr(credential, "get_token") else named,
            sas_expires_at_s=_expiry_of(sas),
        )


def _pause_after(error: Exception) -> float:
    """Return the seconds that an error answer of Azure asks to wait, or 0."""
    answer = getattr(error, "response", None)
    return demanded_pause_s(answer.status_code, answer.headers) if answer is not None else 0.0


async def _close(fs: AzureBlobFileSystem) -> None:
    await fs.service_client.close()
    if fs.storage_options.get("credential") is None and hasattr(fs.credential, "get_token"):  # adlfs made it
        await fs.credential.close()
        fs.sync_credential.close()


def _check_account(url: AzureUrl, account: str | None) -> None:
    named = (url.account or "").removesuffix("-secondary")
    # The SDK takes everything before `.blob.` for the account, also `privatelink` and the DNS zone.
    if named and account and named != account.partition(".")[0]:
        raise OptionError(
            f"The URL names account {named!r}, the connection string another one",
            uri=url.uri_of(url.name),
            hint="Leave out connection_string and AZURE_STORAGE_CONNECTION_STRING, or the account in the URL",
        )


def _check_proxies(named: Mapping[str, str], endpoint: str) -> None:
    """Refuse proxies that cannot be used, of the options or else of the environment."""
    for proxy in named.values():
        check_proxy(str(proxy))
    if not named:
        environment_proxy(endpoint)


def _request_options(options: Mapping[str, Any], ca_file: str | None, times: AnswerTimes) -> dict[str, Any]:
    """Return the options of each request; adlfs passes none of them when it makes the client."""
    chosen: dict[str, Any] = {
        "retry_total": 0,
        "permit_redirects": False,  # the client would sign requests for any host that a redirect names
        "connection_timeout": options.get("connection_timeout") or times.connect_s,
        "read_timeout": options.get("read_timeout") or times.silence_s,
    }
    # An argument of aiohttp: `connection_verify` would make a context, and so a connection, for each request.
    chosen["ssl"] = trust_in(ca_file or "")
    if options.get("proxies"):
        chosen["proxies"] = dict(options["proxies"])
    return chosen


def _expiry_of(sas: str) -> float | None:
    """Return the Unix time at which a SAS expires; None where a stored access policy has the time."""
    expiry = parse_qs(sas.lstrip("?")).get("se", [""])[0]
    try:
        parsed = datetime.fromisoformat(expiry.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()
