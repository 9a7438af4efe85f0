"""The options of a web server: the arguments of fsspec's HTTP file system, merged over fsspec's own configuration.

fsspec and aiohttp accept any option, and then fail at each request. Guarantees: an error names the option, and the
options that exist; the user's options are copied, never changed; an option that the engine does not support is
reported, so that the objects are read through fsspec instead. Refuses unverified TLS. Arguments of a session that the
caller's own function makes (``get_client``) are not checked.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Any

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from streamer.backends.client.option_checks import FLAG, Kind, Kinds, check_tls_is_verified, check_types
from streamer.backends.fsspec_settings import configured_options
from streamer.backends.option_names import OF_FSSPEC, check_option_names, near_name
from streamer.core.errors import OptionError

# Options that matter only to fsspec's own reading, caching and listing.
_IRRELEVANT = OF_FSSPEC | {"block_size", "cache_options", "cache_type", "same_scheme", "simple_links", "size_policy"}
_OF_REQUESTS = frozenset({"auth", "cookies", "headers", "proxy", "proxy_auth", "ssl", "timeout"})
_OWN = _OF_REQUESTS | {"client_kwargs", "encoded", "local_redirects", "verify"}
_OF_CLIENT = _OF_REQUESTS - {"ssl"} | {"raise_for_status", "trust_env"}

# Arguments of aiohttp's requests, which fsspec passes on; their public signature is ``**kwargs``.
OF_AIOHTTP = frozenset(
    {
        "allow_redirects",
        "auto_decompress",
        "chunked",
        "compress",
        "data",
        "expect100",
        "fingerprint",
        "json",
        "max_field_size",
        "max_headers",
        "max_line_size",
        "max_redirects",
        "middlewares",
        "params",
        "proxy_headers",
        "raise_for_status",
        "read_bufsize",
        "read_until_eof",
        "server_hostname",
        "skip_auto_headers",
        "ssl_context",
        "trace_request_ctx",
        "upload_tracker",
        "verify_ssl",
    }
)

_PROXY = Kind("a URL", (str, URL))
_TIMEOUT = Kind("seconds or aiohttp.ClientTimeout", (int, float, str, aiohttp.ClientTimeout))
_KINDS: Kinds = {
    "client_kwargs": {
        "connector": Kind("a connector of aiohttp", (aiohttp.BaseConnector,)),
        "proxy": _PROXY,
        "timeout": _TIMEOUT,
        "trust_env": FLAG,
    },
    "get_client": Kind("a function that makes a session", (Callable,)),  # type: ignore[arg-type]
    "local_redirects": FLAG,
    "proxy": _PROXY,
    "ssl": Kind("True, an ssl.SSLContext or aiohttp.Fingerprint", (bool, ssl.SSLContext, aiohttp.Fingerprint)),
    "timeout": _TIMEOUT,
}


def merged_options(storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge fsspec's configuration into the arguments of `HTTPFileSystem`."""
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


def check_options(options: Mapping[str, Any], own: Collection[str], others: Collection[str]) -> None:
    """Check the arguments of fsspec's `HTTPFileSystem`."""
    check_option_names("http://", options, {*own, "get_client"}, ignored={*others, *OF_AIOHTTP})
    check_types(options, _KINDS)
    client = options.get("client_kwargs") or {}
    arguments = inspect.signature(aiohttp.ClientSession).parameters
    unknown = next((name for name in client if name not in arguments), None)
    if unknown is not None and not options.get("get_client"):
        near = near_name(unknown, arguments)
        hint = f"Did you mean {near!r}?" if near else "It has the arguments of aiohttp.ClientSession"
        raise OptionError(f"client_kwargs has no {unknown!r}", hint=hint)
