"""Recognises hosts and URLs of Azure. Pure, and needs no library of Azure, so that the HTTP backend can use it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

# Arguments of adlfs that name credentials.
CREDENTIAL_OPTIONS = ("account_key", "anon", "client_id", "connection_string", "credential", "sas_token")

# Accounts of the public cloud, China, the US government, and the retired German cloud; accounts with an endpoint in
# one of a hundred DNS zones; all of these with the prefixes of private links and secondary endpoints; Fabric's OneLake.
# https://learn.microsoft.com/azure/storage/common/storage-account-overview#storage-account-endpoints
# https://learn.microsoft.com/azure/private-link/private-endpoint-dns
# https://learn.microsoft.com/fabric/onelake/onelake-access-api
_HOST = re.compile(
    r"([a-z0-9-]+\.)+(blob|dfs)\."
    r"(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net|cloudapi\.de)|storage\.azure\.net)"
    r"|([a-z0-9-]+-)?onelake\.(blob|dfs)\.fabric\.microsoft\.com",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"(?:^|&)sig=")


def is_azure_host(host: str) -> bool:
    """Say whether a host, with or without a port, belongs to Azure's blob service.

    Example:
        >>> is_azure_host("account.z01.blob.storage.azure.net"), is_azure_host("blob.core.windows.net.example.com")
        (True, False)
    """
    name, _, port = host.partition(":")
    return _HOST.fullmatch(name) is not None and port in ("", "443")


def is_blob_url(uri: str) -> bool:
    """Say whether this is an ``https://`` URL of Azure Blob Storage, in any of its clouds.

    Example:
        >>> is_blob_url("https://account.blob.core.windows.net/container/model.safetensors?sv=…&sig=…")
        True
        >>> is_blob_url("https://account.blob.core.windows.net.example.com/container")
        False
    """
    try:
        parts = urlsplit(uri)
        return parts.scheme == "https" and _HOST.fullmatch(parts.hostname or "") is not None
    except ValueError:  # brackets that are no IPv6 address
        return False


def has_sas(query: str) -> bool:
    """Say whether a URL's query holds a SAS, a signature of Azure's."""
    return _SIGNATURE.search(query) is not None
