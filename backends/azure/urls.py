"""Parses the URLs of Azure blobs, and decides which hosts may receive credentials. Pure, imports nothing of Azure.

Guarantees: the SAS in a URL's query is separated from the name, and is in no `repr` and no URL that is shown. Refuses a
URL without a container, with a user or password, or with a query that is not a SAS: if a version or a snapshot were
ignored silently, the read would return other bytes.

A URL may come from an index, a configuration file or a paste. A SAS or a login of the environment gives access to all
data of its owner. So the host of a URL is used only if it is Azure's, in any cloud, or if ``account_host`` or a
connection string names it, too. For any other host nothing is looked up, connected to or signed, with or without
credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from streamer.backends.blob_urls import has_sas, is_azure_host
from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

_CONTAINER = re.compile(r"[A-Za-z0-9$-]{1,63}")  # `$` begins $root, $web and $logs
_EXPECTED = (
    "Expected az://container/path, abfss://container@account.dfs.core.windows.net/path "
    "or https://account.blob.core.windows.net/container/path"
)

_VERSION = re.compile(r"(?:^|&)(?:snapshot|versionid)=", re.IGNORECASE)
_SETTING = re.compile(r"\s*([A-Za-z]+)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class AzureUrl:
    """One URL."""

    container: str
    name: str  # name of the blob or folder, decoded, without a slash at its end; may be empty
    account: str | None  # the storage account that the URL names, or None
    host: str | None  # the account's host for blobs (not for Data Lake), or None
    sas: str | None = field(repr=False)  # the SAS in the query, without ``?``, or None
    prefix: str  # the URL before the name, as the user wrote it, without secrets

    @property
    def is_https(self) -> bool:
        """Whether it is an ``https://`` URL, in which names are percent-encoded."""
        return self.prefix.startswith("https:")

    def uri_of(self, name: str) -> str:
        """Return the URL of another name in the same container, for messages."""
        return redact(self.prefix + (quote(name) if self.is_https else name)).rstrip("/")


def parse_url(uri: str) -> AzureUrl:
    """Parse a URL."""
    scheme, _, rest = uri.partition("://")
    if scheme.lower() == "https":
        path, _, query = rest.partition("?")
        if "#" in uri:
            raise UsageError("A blob's URL has no fragment", uri=redact(uri), hint="Write a # of a name as %23")
        authority, _, path = path.partition("/")
        return _of_host("https", authority, unquote(path), _sas(query, uri), uri)
    path, sas = _split_sas(rest, uri)
    authority, _, name = path.partition("/")
    container, has_host, host = authority.partition("@")
    if not has_host and is_azure_host(authority):
        return _of_host(scheme, authority, name, sas, uri)
    _check_container(container, uri)
    account, blob_host = _account_of(host, uri) if has_host else (None, None)
    return AzureUrl(container, name.rstrip("/"), account, blob_host, sas, f"{scheme}://{authority}/")


def _of_host(scheme: str, host: str, path: str, sas: str | None, uri: str) -> AzureUrl:
    container, _, name = path.partition("/")
    account, blob_host = _account_of(host, uri)
    _check_container(container, uri)
    return AzureUrl(container, name.rstrip("/"), account, blob_host, sas, f"{scheme}://{host}/{container}/")


def _split_sas(rest: str, uri: str) -> tuple[str, str | None]:
    """Split a SAS off; any other ``?`` is part of the name or a wildcard, as in fsspec."""
    path, mark, query = rest.rpartition("?")
    if mark:
        _refuse_version(query, uri)
    return (path, query) if has_sas(query) and path else (rest, None)


def _sas(query: str, uri: str) -> str | None:
    _refuse_version(query, uri)
    if query and not has_sas(query):
        raise UsageError("The URL's query is not a SAS", uri=redact(uri), hint="Write a ? of a name as %3F")
    return query or None


def _refuse_version(query: str, uri: str) -> None:
    """Refuse a version or a snapshot, also beside a SAS: the requests for the blob would not name it."""
    if _VERSION.search(query):
        raise UsageError(
            "The URL names a version or a snapshot of a blob",
            uri=redact(uri.partition("?")[0]),
            hint="Leave it out, or give the https:// URL of the one file with a SAS, which is read as it stands",
        )


def _account_of(host: str, uri: str) -> tuple[str, str | None]:
    """Return account and host for blobs; a name without dots is an account whose host is in the options."""
    is_host = re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]+)?", host)
    if not is_host or (":" in host and "." not in host):  # the name of an account has no port
        raise UsageError("The URL does not name a storage account", uri=redact(uri), hint=_EXPECTED)
    account = host.partition(".")[0].lower()
    return account, host.lower().replace(".dfs.", ".blob.") if "." in host else None


def _check_container(container: str, uri: str) -> None:
    if not container:
        raise UsageError("The URL names no container", uri=redact(uri), hint=_EXPECTED)
    if not _CONTAINER.fullmatch(container):
        raise UsageError("This cannot be the name of a container", uri=redact(uri), hint=_EXPECTED)


def check_host(url: AzureUrl, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse a URL with a host that is neither Azure's nor named by the caller."""
    if url.host is None or is_azure_host(url.host) or url.host in set(_named(options, environment)):
        return
    raise UsageError(
        f"The host {url.host} is none of Azure's, so no request is sent to it",
        uri=url.uri_of(url.name),
        hint=f"If this host may get your credentials, name it: storage_options={{'account_host': '{url.host}'}}",
    )


def _named(options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    if options.get("account_host"):
        yield str(options["account_host"]).partition("/")[0].lower()
        return  # adlfs uses this host even if a connection string of the environment names another host
    _, host = named_by_connection_string(options, environment)
    if host:
        yield host


def named_by_connection_string(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Return the account and host in the connection string of the options, or else of the environment."""
    text = options.get("connection_string") or environment.get("AZURE_STORAGE_CONNECTION_STRING") or ""
    pairs = (_SETTING.fullmatch(part) for part in str(text).split(";"))
    settings = {pair[1].lower(): pair[2].strip() for pair in pairs if pair}
    account = settings.get("accountname")
    if "blobendpoint" in settings:
        host = urlsplit(settings["blobendpoint"]).netloc.lower()
        return account or (host.partition(".")[0] if is_azure_host(host) else None), host
    if account and "endpointsuffix" in settings:
        return account, f"{account}.blob.{settings['endpointsuffix']}".lower()
    return account, None
