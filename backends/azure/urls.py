"""Parses the URLs of Azure blobs. Pure, and imports nothing of Azure.

Guarantees: the SAS in a URL's query is separated from the name, and is in no `repr` and no URL that is shown. Refuses a
URL without a container, with a user or password, or with a query that is not a SAS: if a version or a snapshot were
ignored silently, the read would return other bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from streamer.backends.blob_urls import has_sas, is_azure_host
from streamer.core.errors import UsageError
from streamer.core.secrets.redact import redact

__all__ = ["AzureUrl", "parse_url"]

_CONTAINER = re.compile(r"[A-Za-z0-9$-]{1,63}")  # `$` begins $root, $web and $logs
_EXPECTED = (
    "Expected az://container/path, abfss://container@account.dfs.core.windows.net/path "
    "or https://account.blob.core.windows.net/container/path"
)


@dataclass(frozen=True)
class AzureUrl:
    """One URL.

    Attributes:
        container: Container.
        name: Name of the blob or folder, decoded, without a slash at its end; may be empty.
        account: The storage account that the URL names, or None.
        host: The account's host for blobs (not for Data Lake), or None.
        sas: The SAS in the query, without ``?``, or None.
        prefix: The URL before the name, as the user wrote it, without secrets.
    """

    container: str
    name: str
    account: str | None
    host: str | None
    sas: str | None = field(repr=False)
    prefix: str

    @property
    def is_https(self) -> bool:
        """Whether it is an ``https://`` URL, in which names are percent-encoded."""
        return self.prefix.startswith("https:")

    def uri_of(self, name: str) -> str:
        """Return the URL of another name in the same container, for messages."""
        return redact(self.prefix + (quote(name) if self.is_https else name)).rstrip("/")


def parse_url(uri: str) -> AzureUrl:
    """Parse a URL.

    Raises:
        UsageError: it names no container, holds a password, or has a query that is not a SAS.
    """
    scheme, _, rest = uri.partition("://")
    if scheme.lower() == "https":
        path, _, query = rest.partition("?")
        if "#" in uri:
            raise UsageError("A blob's URL has no fragment", uri=redact(uri), hint="Write a # of a name as %23")
        authority, _, path = path.partition("/")
        return _of_host("https", authority, unquote(path), _sas(query, uri), uri)
    path, sas = _split_sas(rest)
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


def _split_sas(rest: str) -> tuple[str, str | None]:
    """Split a SAS off; any other ``?`` is part of the name or a wildcard, as in fsspec."""
    path, _, query = rest.rpartition("?")
    if has_sas(query) and path:
        return path, query
    if query.startswith("versionid="):
        raise UsageError("Versions of blobs cannot be named in the URL", uri=redact(rest.partition("?")[0]))
    return rest, None


def _sas(query: str, uri: str) -> str | None:
    if query and not has_sas(query):
        raise UsageError(
            "The URL's query is not a SAS",
            uri=redact(uri),
            hint="Versions and snapshots cannot be named; write a ? of a name as %3F",
        )
    return query or None


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
