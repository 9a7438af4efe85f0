"""Turns the options of fsspec's HTTP file system into plain headers, CA file and proxy for the engine.

Refuses headers that would break reading by ranges, and line ends in headers.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from streamer.backends.client.option_checks import timeout_of
from streamer.backends.client.proxy import named_proxy
from streamer.backends.client.request_headers import basic_authorization, check_headers, login_of, own_headers
from streamer.core.errors import OptionError
from streamer.core.secrets.environment import is_blank, variable
from streamer.core.secrets.hidden_arguments import SecretOptions
from streamer.core.secrets.texts import note_credential
from streamer.core.store.certificates import trust_in

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Access", "access_of"]


@dataclass(frozen=True)
class Access:
    """Options of the requests to one server.

    Attributes:
        headers: Headers for the server that the user named, and for no other.
        ca_file: PEM bundle to trust instead of the system's.
        proxy: URL of the proxy with its password; None uses the proxy of the environment.
        timeout: Time-out of requests about objects; None uses those of `Options`.
        is_encoded: URLs of the user are already quoted.
        may_redirect_to_local: Redirects may lead to loopback and link-local addresses.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    proxy: str | None = field(default=None, repr=False)
    timeout: aiohttp.ClientTimeout | None = None
    is_encoded: bool = False
    may_redirect_to_local: bool = False


def access_of(url: str, options: Mapping[str, Any]) -> Access:
    """Turn the arguments of `HTTPFileSystem` into an `Access`.

    Logins win in this order: ``headers``, ``auth``, the same options in ``client_kwargs``, a user in the URL, and, if
    ``trust_env`` allows it, a netrc file.
    """
    client = options.get("client_kwargs") or {}
    logins = SecretOptions({"netrc": _netrc_login(url) if client.get("trust_env") else None, "url": _login_in(url)})
    headers = SecretOptions()
    for name in logins:
        headers.update(_login_headers(logins, name))
    for source in (client, options):
        headers.update(_login_headers(source, "auth"))
        headers.update(_cookie_headers(source))
        headers.update(own_headers(source))
    if logins["netrc"]:
        note_credential(logins["netrc"][1])
        note_credential(headers.get("authorization"))
    check_headers(headers)
    return Access(
        headers={name: headers[name] for name in sorted(headers)},
        ca_file=_ca_file(options.get("verify")),
        proxy=named_proxy(options) or named_proxy(client),
        timeout=timeout_of(options.get("timeout") or client.get("timeout"), "timeout"),
        is_encoded=bool(options.get("encoded")),
        may_redirect_to_local=options.get("local_redirects") is True,
    )


# These functions keep values of `source` out of local names, because a traceback shows the values of local names.


def _login_headers(source: Mapping[str, Any], name: str) -> dict[str, str]:
    if source.get(name) is None:
        return {}
    if login_of(source[name]) is None:
        raise OptionError("auth must be aiohttp.BasicAuth or a pair (user, password)")
    return {"authorization": basic_authorization(source[name]) or ""}


def _login_in(url: str) -> tuple[str, str] | None:
    user, has_user, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    return (unquote(name), unquote(password)) if has_user else None


def _netrc_login(url: str) -> tuple[str, str] | None:
    try:
        entry = netrc.netrc(variable("NETRC")).authenticators(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return (entry[0], entry[2] or "") if entry else None


def _cookie_headers(source: Mapping[str, Any]) -> dict[str, str]:
    if not source.get("cookies"):
        return {}
    if not isinstance(source["cookies"], Mapping):
        raise OptionError("cookies must be a mapping of names to values")
    return {"cookie": "; ".join(f"{name}={value}" for name, value in source["cookies"].items())}


def _ca_file(verify: Any) -> str | None:
    if verify in (None, True):
        return None
    if not isinstance(verify, (str, os.PathLike)) or is_blank(os.fspath(verify)):
        raise OptionError("verify must name a PEM file with the certificates to trust")
    trust_in(os.fspath(verify))  # raises if the file cannot be used
    return os.fspath(verify)
