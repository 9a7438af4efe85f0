"""Checks names and types of the options of a web server: fsspec and aiohttp accept any, and then fail at each request.

Guarantees: an error names the option, and the options that exist. Arguments of a session that the caller's own function
makes (``get_client``) are not checked.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Callable, Collection, Mapping
from typing import Any

import aiohttp
from yarl import URL

from streamer.backends.client.option_checks import FLAG, Kind, Kinds, check_types
from streamer.backends.option_names import check_option_names, near_name
from streamer.core.errors import OptionError

__all__ = ["OF_AIOHTTP", "check_options"]

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


def check_options(options: Mapping[str, Any], own: Collection[str], others: Collection[str]) -> None:
    """Check the arguments of fsspec's `HTTPFileSystem`.

    Args:
        options: The arguments.
        own: Names of the options that this backend supports.
        others: Names of options that matter only to fsspec.

    Raises:
        OptionError: an option is unknown, or has the wrong type.
    """
    check_option_names("http://", options, {*own, "get_client"}, ignored={*others, *OF_AIOHTTP})
    check_types(options, _KINDS)
    client = options.get("client_kwargs") or {}
    arguments = inspect.signature(aiohttp.ClientSession).parameters
    unknown = next((name for name in client if name not in arguments), None)
    if unknown is not None and not options.get("get_client"):
        near = near_name(unknown, arguments)
        hint = f"Did you mean {near!r}?" if near else "It has the arguments of aiohttp.ClientSession"
        raise OptionError(f"client_kwargs has no {unknown!r}", hint=hint)
