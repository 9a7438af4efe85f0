"""The options of a web server: the arguments of fsspec's HTTP file system, merged over fsspec's own configuration.

Guarantees: the user's options are copied, never changed; an option that the engine does not support is reported, so
that the objects are read through fsspec instead. Refuses unverified TLS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsspec.implementations.http import HTTPFileSystem

from streamer.backends.client.option_checks import check_tls_is_verified
from streamer.backends.fsspec.options import configured_options
from streamer.backends.http.option_kinds import check_options
from streamer.backends.option_names import OF_FSSPEC
from streamer.core.secrets.options import SecretOptions

__all__ = ["fsspec_option", "merged_options"]

# Options that matter only to fsspec's own reading, caching and listing.
_IRRELEVANT = OF_FSSPEC | {"block_size", "cache_options", "cache_type", "same_scheme", "simple_links", "size_policy"}
_OF_REQUESTS = frozenset({"auth", "cookies", "headers", "proxy", "proxy_auth", "ssl", "timeout"})
_OWN = _OF_REQUESTS | {"client_kwargs", "encoded", "local_redirects", "verify"}
_OF_CLIENT = _OF_REQUESTS - {"ssl"} | {"raise_for_status", "trust_env"}


def merged_options(storage_options: Mapping[str, Any]) -> SecretOptions:
    """Merge fsspec's configuration into the arguments of `HTTPFileSystem`.

    Raises:
        OptionError: an unknown option, a value of the wrong type, TLS that would not be verified, or an
            ``asynchronous`` instance.
    """
    options = configured_options(HTTPFileSystem, storage_options)
    check_options(options, _OWN, _IRRELEVANT)
    check_tls_is_verified(options)
    return options


def fsspec_option(options: Mapping[str, Any]) -> str | None:
    """Return the name of an option that only fsspec's own client supports, or None."""
    for name, value in options.items():
        if name not in _OWN | _IRRELEVANT or (name == "ssl" and value not in (None, True)):
            return name
    client = options.get("client_kwargs") or {}
    return next((f"client_kwargs[{name!r}]" for name in client if name not in _OF_CLIENT and client[name]), None)
