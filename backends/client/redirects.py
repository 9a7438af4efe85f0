"""Where an HTTP redirect may lead, and what may be sent there. Pure, but for the environment's metadata server.

Guarantees: headers that the user gave go to no other origin (scheme, host and port) than the one they were given for,
and stay dropped behind it; TLS is never left. Refuses other schemes than ``http`` and ``https``, a sixth redirect, and,
unless that was allowed, a way from elsewhere to loopback and link-local addresses and to a cloud's metadata server:
only we can reach those of this machine, and a strange server must not make us. A host name is taken for what it says:
where it leads is not looked up. One with percent signs is refused: libcurl would read ``%6cocalhost`` as ``localhost``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, urljoin, urlsplit

from streamer.backends.metadata_servers import is_metadata_host
from streamer.core.errors import RedirectError
from streamer.core.secrets.urls import hidden_uri

__all__ = ["MAX_REDIRECTS", "REDIRECTS", "Hop", "next_hop", "origin_of", "quoted"]

MAX_REDIRECTS = 5  # a load balancer, a login, a mirror and a CDN need four
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_NAME_IT = "Name the object's own URL"
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback")
_EMBEDDING = (IPv6Network("::/96"), IPv6Network("64:ff9b::/96"))  # IPv4-compatible, NAT64
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
        may_be_local: It may lead from anywhere to loopback and link-local addresses and to metadata servers.

    Raises:
        RedirectError: it leads nowhere, to another scheme, from TLS to plain HTTP, or to an address of this machine.
    """
    if not location:
        raise RedirectError("The server redirects without saying where to", uri=uri, hint=_NAME_IT)
    try:
        url = hidden_uri(urljoin(hop.url, quoted(location)))
        before, after = origin_of(hop.url), origin_of(url)
    except ValueError:
        raise RedirectError("The server redirects to something that is not a URL", uri=uri, hint=_NAME_IT) from None
    if after[0] not in _PORTS or not after[1]:
        raise RedirectError("The server redirects to a scheme that is not HTTP", uri=uri, hint=_NAME_IT)
    if before[0] == "https" and after[0] == "http":
        raise RedirectError(
            "The server redirects from TLS to plain HTTP", uri=uri, hint=f"If {after[1]} is to be trusted, name it"
        )
    if "%" in after[1].partition("%25")[0] or ("%" in after[1] and ":" not in after[1]):  # but for an IPv6 zone
        raise RedirectError("The server redirects to something that is not a URL", uri=uri, hint=_NAME_IT)
    if not may_be_local:
        _refuse_local(before[1], after[1], uri)
    return Hop(_without_user(url), hop.headers if before == after else {})


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port; ValueError for a port that is none."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def quoted(text: str, reserved: str = _RESERVED) -> str:
    """Quote what may not stand in a URL, and nothing else: a signature may cover every letter of it."""
    return quote(_STRAY_PERCENT.sub("%25", text), safe=reserved, errors="surrogateescape")


def _refuse_local(before: str, after: str, uri: str) -> None:
    """Refuse a way to an address of this machine, unless the server lies there itself."""
    there = _locality(after)
    if there and there != _locality(before):
        raise RedirectError(
            f"The server redirects to a {there} address",
            uri=uri,
            hint="If it may, say storage_options={'local_redirects': True}",
        )


def _locality(host: str) -> str:
    """Name the kind of a host of this machine by its address, in any form the resolver takes; else ""."""
    host = host.lower().rstrip(".").partition("%")[0]
    if host in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return "loopback"
    if is_metadata_host(host):
        return "metadata server's"
    address: IPv4Address | IPv6Address
    try:
        address = ip_address(host) if ":" in host else IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):  # a name
        return ""
    address = _embedded(address) or address
    if address.is_loopback or address.is_unspecified:  # 0.0.0.0 reaches this machine, too
        return "loopback"
    if is_metadata_host(str(address)):
        return "metadata server's"
    return "link-local" if address.is_link_local else ""


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Take the IPv4 address out of an IPv6 one that leads to it."""
    if isinstance(address, IPv4Address) or int(address) <= 1:  # ``::`` and ``::1`` are their own
        return None
    is_low = any(address in network for network in _EMBEDDING)
    return address.ipv4_mapped or address.sixtofour or (IPv4Address(int(address) & 0xFFFFFFFF) if is_low else None)


def _without_user(url: str) -> str:
    """A server must not choose the credentials that we show to another."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
