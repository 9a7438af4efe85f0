"""Decides which ``https://`` URLs the Azure backend reads, from the URL, the options and the environment.

A public file, and a file with a SAS, is read by plain HTTP without a library of Azure. A folder is listed by Azure's
API, and credentials need Azure's signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from streamer.backends.blob_urls import CREDENTIAL_OPTIONS, has_sas, is_blob_url
from streamer.backends.builtin_storages import install_hint
from streamer.core.errors import UnknownSchemeError
from streamer.core.options.limits import Limits
from streamer.core.secrets.environment import set_variables
from streamer.core.secrets.redact import redact
from streamer.core.store.sources import Store

__all__ = ["is_for_azure", "open_azure"]

_AZURE_OPTIONS = {*CREDENTIAL_OPTIONS, "account_name", "client_secret", "tenant_id"}
_FILES = (".safetensors", ".json")


def is_for_azure(uri: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> bool:
    """Say whether a URL is of Azure and cannot be read by plain HTTP."""
    if not is_blob_url(uri):
        return False
    if options.keys() & _AZURE_OPTIONS:
        return True
    parts = urlsplit(uri)
    if not parts.path.endswith(_FILES) or any(letter in parts.path for letter in "*["):
        return True  # a folder, or a pattern in one
    names = set_variables() if environment is None else environment
    has_credentials = any(name.startswith("AZURE_STORAGE_") or name == "AZURE_CLIENT_ID" for name in names)
    return has_credentials and not has_sas(parts.query)


def open_azure(uri: str, options: Mapping[str, Any], limits: Limits) -> Store:
    """Open the URL with the Azure backend."""
    try:
        from streamer.backends.azure.store import AzureStore  # noqa: PLC0415 (needs adlfs)
    except ImportError as error:
        raise UnknownSchemeError(
            "A folder of Azure Blob Storage, or one with credentials, needs the Azure backend",
            uri=redact(uri),
            hint=install_hint("az"),
        ) from error
    return AzureStore(uri, options, limits)
