"""Where an HTTP redirect may lead, and what may be sent there. Pure.

Guarantees: headers that the user gave go to no other origin (scheme, host and port) than the one they were given for,
and stay dropped behind it; TLS is never left. Refuses other schemes than ``http`` and ``https``, a sixth redirect, and,
unless that was allowed, a way from elsewhere to loopback and link-local addresses: only we can reach those of this
machine (a service without a password, a cloud's metadata server), and a strange server must not make us. A host name is
taken for what it says: where it leads is not looked up.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import quote, urljoin, urlsplit

from streamer.core.errors import RedirectError

__all__ = ["MAX_REDIRECTS", "REDIRECTS", "Hop", "next_hop", "origin_of", "quoted"]

MAX_REDIRECTS = 5  # a load balancer, a login, a mirror and a CDN need four
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_PORTS = {"http": 80, "https": 443}
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RESERVED = "!$%&'()*+,/:;=?@[]~#"


@dataclass(frozen=True)
class Hop:
    """One request on the way to an object.

    Attributes:
        url: Complete and quoted URL; never shown.
        headers: The user's headers, as far as they may be sent there.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def next_hop(hop: Hop, location: str | None, uri: str, *, may_be_local: bool = False) -> Hop:
    """Follow a redirect.

    Args:
        hop: The request that was answered with it.
        location: The answer's ``Location``.
        uri: What is being read, without secrets.
        may_be_local: It may lead to loopback and link-local addresses from anywhere.

    Raises:
        RedirectError: it leads nowhere, to another scheme, from TLS to plain HTTP, or to an address of this machine.
    """
    if not location:
        raise RedirectError("The server redirects without saying where to", uri=uri)
    try:
        url = urljoin(hop.url, quoted(location))
        before, after = origin_of(hop.url), origin_of(url)
    except ValueError:
        raise RedirectError("The server redirects to something that is not a URL", uri=uri) from None
    if after[0] not in _PORTS or not after[1]:
        raise RedirectError("The server redirects to a scheme that is not HTTP", uri=uri)
    if before[0] == "https" and after[0] == "http":
        raise RedirectError(
            "The server redirects from TLS to plain HTTP", uri=uri, hint=f"If {after[1]} is to be trusted, name it"
        )
    there = _locality(after[1])
    if there and there != _locality(before[1]) and not may_be_local:
        raise RedirectError(
            f"The server redirects to a {there} address",
            uri=uri,
            hint="If it may, say storage_options={'local_redirects': True}",
        )
    return Hop(_without_user(url), hop.headers if before == after else {})


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port; ValueError for a port that is none."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def quoted(text: str, reserved: str = _RESERVED) -> str:
    """Quote what may not stand in a URL, and nothing else: a signature may cover every letter of it."""
    return quote(_STRAY_PERCENT.sub("%25", text), safe=reserved, errors="surrogateescape")


def _locality(host: str) -> str:
    """Say whether a host is "loopback" or "link-local" by its address, in any form the resolver takes; else ""."""
    host = host.rstrip(".").partition("%")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    address: IPv4Address | IPv6Address
    try:
        address = ip_address(host) if ":" in host else IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):  # a name
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:  # 0.0.0.0 reaches this machine, too
        return "loopback"
    return "link-local" if address.is_link_local else ""


def _without_user(url: str) -> str:
    """A server must not choose the credentials that we show to another."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
