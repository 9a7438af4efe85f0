"""The Azure control plane: a service client over the engine's connections, with the credential of one adlfs instance.

adlfs only checks whether a setting is None. A blank ``AZURE_STORAGE_CONNECTION_STRING`` is not None: adlfs would use it
as a connection string without an account, and it would hide the login of the machine.

Guarantees: a request ends within three attempts and the time of `answer_times`, a login within 30 s; no redirect is
followed. Refuses unverified TLS, and options that name another account than the URL. The methods of adlfs are not
called, because its listing cache may be stale. The service client's own retries are not used: they wait 15 s and more.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from adlfs import AzureBlobFileSystem
from azure.storage.blob import BlobSasPermissions, BlobServiceClient, generate_blob_sas
from fsspec.asyn import sync

from streamer.backends.azure.errors import Request, raise_login_error, raise_storage_error
from streamer.backends.azure.options import filled_options
from streamer.backends.azure.transport import Call, EngineTransport
from streamer.backends.azure.urls import AzureUrl
from streamer.backends.blob_urls import is_azure_host
from streamer.backends.client.answer_times import ATTEMPTS, answer_times
from streamer.backends.client.proxy import check_proxy, environment_proxy
from streamer.backends.fsspec.instances import shared
from streamer.backends.login_state import login_identity
from streamer.backends.metadata_servers import ask_azure_directly
from streamer.core.errors import OptionError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import is_blank, set_variables
from streamer.core.secrets.texts import note_credential
from streamer.core.store.certificates import trust_in

# Long enough for requests that are in flight while the signature is renewed; short, so that a leaked URL soon expires.
SIGNATURE_LIFETIME_S = 600
CLOCK_SKEW_S = 300  # a server whose clock is behind would refuse a signature that begins now

DEFAULT_LIMITS = Limits()
# `DefaultAzureCredential` tries a dozen places, among them an address that answers on Azure's own machines only.
LOGIN_TIMEOUT_S = 30
TOKEN_RESERVE_S = 300  # renews a token this long before it expires, as azure-identity does; a new one takes a second
TOKEN_SCOPE = "https://storage.azure.com/.default"  # noqa: S105  (a name, the same in all clouds)

_Answer = TypeVar("_Answer")


class _Setting:
    """An attribute that is None if it is set to a blank text."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return None if instance is None else vars(instance).get(self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = None if is_blank(value) else value


class AzureFileSystem(AzureBlobFileSystem):  # type: ignore[misc]  # adlfs has no types
    """adlfs's file system. The settings below are those that adlfs also reads from the environment."""

    account_key = _Setting()
    account_name = _Setting()
    client_id = _Setting()
    client_secret = _Setting()
    connection_string = _Setting()
    sas_token = _Setting()
    tenant_id = _Setting()


@dataclass(frozen=True)
class Grant:
    """A URL and headers that read one blob."""

    url: str = field(repr=False)  # the blob's URL; its query may be a SAS
    headers: Mapping[str, str] = field(repr=False)  # headers of every request
    expires_at_s: float | None = None  # Unix time at which URL or headers expire; None if only Azure can tell
    may_be_renewed: bool = True  # the next grant may have another signature or token


class AzureClient:
    """Sends requests about blobs, and makes the URLs and headers that read them, with one adlfs instance."""

    def __init__(self, url: AzureUrl, storage_options: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
        options = filled_options(url, storage_options, set_variables())
        try:
            self._fs = shared(self, AzureFileSystem, options, _close)
        except Exception as error:
            raise OptionError(
                f"adlfs refuses the storage options: {type(error).__name__}",
                hint="Check connection_string, or account_name and one of account_key, sas_token and credential",
            ) from None  # the text of the exception may repeat the options
        adlfs_client: Any = self._fs.service_client
        self._credential: Any = adlfs_client.credential
        # The account's endpoint, without SAS.
        self.endpoint = str(adlfs_client.url).partition("?")[0].rstrip("/")  # the query may be a SAS
        if options.get("credential") is None and self._has_token:
            ask_azure_directly(self._credential)
        self._options = options
        self._last_token: Any = None
        self._one_login = asyncio.Lock()
        _check_account(url, adlfs_client.account_name)
        self.transport = _transport(options, limits)  # uses the certificates and proxies that the options name
        _check_proxies(self.transport.proxies, self.endpoint)
        # The option `timeout` of adlfs is a limit of Azure's own; reads of data have the times of `Options`.
        self._of_requests = {"timeout": options["timeout"]} if options.get("timeout") else {}
        self._service: Any = BlobServiceClient(
            adlfs_client.url,
            None if self._has_token else self._credential,
            transport=self.transport,
            retry_total=0,
            permit_redirects=False,  # otherwise the client signs requests for any host that a redirect names
        )

    def call(
        self, send: Callable[[BlobServiceClient, Mapping[str, Any]], _Answer], uri: str, container: str
    ) -> _Answer:
        """Call ``send(service_client, request_options)``."""
        call = Call(uri, self._token_headers(uri, container))
        try:
            return send(self._service, {"call": call, **self._of_requests})
        except Exception as error:
            raise_storage_error(error, self._request(uri, container), call.attempts, call.answer)

    def grant(self, container: str, name: str, uri: str) -> Grant:
        """Return a URL that reads one blob: signed by the account key, with the user's SAS, or with a token header."""
        credential = self._credential
        url: str = self._service.get_blob_client(container, name).url
        # Without this header Azure answers an anonymous request by the protocol of 2009, with ETags without quotes.
        headers = {"x-ms-version": str(self._service.api_version)}
        if hasattr(credential, "account_key"):
            ends_at_s = int(time.time()) + SIGNATURE_LIFETIME_S
            return Grant(f"{url}?{self._signed(container, name, uri, ends_at_s)}", headers, float(ends_at_s))
        if self._has_token:
            token = self._token(uri, container)
            return Grant(url, {**headers, "Authorization": f"Bearer {token.token}"}, float(token.expires_on))
        if hasattr(credential, "signature"):  # an `AzureSasCredential`, whose owner may update it
            sas = str(credential.signature).lstrip("?")
            expires_at_s = _expiry_of(sas)
            # Only Azure's clock decides whether a SAS has ended: this machine's may be ahead.
            is_early = expires_at_s is not None and expires_at_s > time.time()
            return Grant(f"{url}?{sas}", headers, expires_at_s if is_early else None)
        return Grant(url, headers, may_be_renewed=False)

    def login_identity(self) -> str:
        """Return what the login adds to the identity of a blob; empty if another process cannot have the login."""
        # Azure's own hosts are accounts, and each name in one has the same bytes for every login that may read it.
        return "azure" if is_azure_host(urlsplit(self.endpoint).netloc) else login_identity(self._options)

    def _signed(self, container: str, name: str, uri: str, ends_at_s: int) -> str:
        credential = self._credential
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

    @property
    def _has_token(self) -> bool:
        return hasattr(self._credential, "get_token")

    def _token_headers(self, uri: str, container: str) -> dict[str, str]:
        """Return the header with the token of a login; empty without a login.

        The service client is made without the login, because its own wait for a token has no time-out.
        """
        return {"Authorization": f"Bearer {self._token(uri, container).token}"} if self._has_token else {}

    def _token(self, uri: str, container: str) -> Any:
        try:
            return sync(self._fs.loop, self._get_token)
        except Exception as error:
            raise_login_error(error, self._request(uri, container))

    async def _get_token(self) -> Any:
        async with self._one_login:
            if self._last_token is None or self._last_token.expires_on < time.time() + TOKEN_RESERVE_S:
                pending = self._credential.get_token(TOKEN_SCOPE)
                if not inspect.isawaitable(pending):
                    raise TypeError
                self._last_token = await asyncio.wait_for(pending, LOGIN_TIMEOUT_S)
            note_credential(self._last_token.token)
            return self._last_token

    def _request(self, uri: str, container: str) -> Request:
        credential = self._credential
        sas = urlsplit(self._service.url).query or str(getattr(credential, "signature", ""))
        named = "account key" if hasattr(credential, "account_key") else "SAS" if sas else None
        return Request(
            uri=uri,
            container=container,
            account=self._service.account_name,
            credential="token" if self._has_token else named,
            sas_expires_at_s=_expiry_of(sas),
        )


async def _close(fs: AzureBlobFileSystem) -> None:
    await fs.service_client.close()
    if fs.storage_options.get("credential") is None and hasattr(fs.credential, "get_token"):  # adlfs made it
        await fs.credential.close()
        fs.sync_credential.close()


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


def _transport(options: Mapping[str, Any], limits: Limits) -> EngineTransport:
    """Make a transport with the options that adlfs does not pass to the clients it makes."""
    verify, retries = options.get("connection_verify"), options.get("retry_total")
    ca_file = os.fspath(verify) if isinstance(verify, (str, os.PathLike)) else None
    trust_in(ca_file or "")  # raises if the file cannot be used
    times = answer_times(limits, options.get("read_timeout"))
    return EngineTransport(
        times=replace(times, connect_s=options.get("connection_timeout") or times.connect_s),
        most_attempts=ATTEMPTS if retries is None else 1 + int(retries),
        most_bytes=limits.answer_bytes,
        ca_file=ca_file,
        proxies=options.get("proxies") or {},
    )


def _expiry_of(sas: str) -> float | None:
    """Return the Unix time at which a SAS expires; None if a stored access policy holds the time."""
    expiry = parse_qs(sas.lstrip("?")).get("se", [""])[0]
    try:
        parsed = datetime.fromisoformat(expiry.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()
