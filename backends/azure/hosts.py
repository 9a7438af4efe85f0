"""Decides which hosts may receive Azure credentials: Azure's own, and hosts that the caller names beside the URL. Pure.

A URL may come from an index, a configuration file or a paste. A SAS or a login of the environment gives access to all
data of its owner. So the host of a URL is used only if it is Azure's, in any cloud, or if ``account_host`` or a
connection string names it, too. For any other host nothing is looked up, connected to or signed, with or without
credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from streamer.backends.azure.urls import AzureUrl
from streamer.backends.blob_urls import is_azure_host
from streamer.core.errors import UsageError

__all__ = ["check_host", "named_by_connection_string"]

_SETTING = re.compile(r"\s*([A-Za-z]+)\s*=(.*)", re.DOTALL)


def check_host(url: AzureUrl, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Refuse a URL with a host that is neither Azure's nor named by the caller.

    Args:
        url: The URL.
        options: Arguments of adlfs, with fsspec's configuration.
        environment: Variables, among them ``AZURE_STORAGE_CONNECTION_STRING``.

    Raises:
        UsageError: the URL has such a host.
    """
    if url.host is None or is_azure_host(url.host) or url.host in set(_named(options, environment)):
        return
    raise UsageError(
        f"The host {url.host} is none of Azure's, and gets no request",
        uri=url.uri_of(url.name),
        hint=f"If your credentials are meant for it, name it: storage_options={{'account_host': '{url.host}'}}",
    )


def _named(options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    if options.get("account_host"):
        yield str(options["account_host"]).partition("/")[0].lower()
        return  # requests go there, whatever host a connection string of the environment names
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
