"""Decides where an HTTP redirect may lead, and with which headers. Pure, except that it reads ``GCE_METADATA_HOST``.

Guarantees: headers of the user, except ``User-Agent``, are sent only to the origin (scheme, host and port) that the
user named, and never again after a redirect to another origin. No redirect leads from TLS to plain HTTP. Refuses a
scheme other than ``http`` and ``https``, and a sixth redirect. Unless allowed, a redirect from a remote server to a
loopback or link-local address or to a metadata server is refused: a server must not make this machine send requests to
its own services. Host names are compared, not looked up. A host name with percent signs is refused: libcurl would read
``%6cocalhost`` as ``localhost``.
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
from streamer.core.secrets.redact import redact

MAX_REDIRECTS = 5  # a load balancer, a login, a mirror and a CDN need four
REDIRECTS = frozenset({301, 302, 303, 307, 308})
KEEPING_METHOD = frozenset({307, 308})

_KEEPS = "Only the redirects 307 and 308 mean that the file belongs there"
_NAME_IT = "Name the object's own URL"
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback")
_EMBEDDING = (IPv6Network("::/96"), IPv6Network("64:ff9b::/96"))  # IPv4-compatible, NAT64
_PORTS = {"http": 80, "https": 443}
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RESERVED = "!$%&'()*+,/:;=?@[]~#"


@dataclass(frozen=True)
class Hop:
    """One request in a chain of redirects to an object."""

    url: str = field(repr=False)  # complete and quoted URL; never shown
    # The user's headers that may be sent to this URL.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def next_hop(hop: Hop, location: str | None, uri: str, *, may_be_local: bool = False) -> Hop:
    """Return the request that a redirect demands."""
    if not location:
        raise RedirectError("The server redirects without saying where to", uri=uri, hint=_NAME_IT)
    try:
        url = urljoin(hop.url, quoted(location))
        before, after = origin_of(hop.url), origin_of(url)
    except ValueError:
        raise RedirectError("The server redirects to something that is not a URL", uri=uri, hint=_NAME_IT) from None
    if after[0] not in _PORTS or not after[1]:
        raise RedirectError("The server redirects to a scheme that is not HTTP", uri=uri, hint=_NAME_IT)
    if before[0] == "https" and after[0] == "http":
        raise RedirectError(
            "The server redirects from TLS to plain HTTP", uri=uri, hint=f"If you trust {after[1]}, name it in the URL"
        )
    if "%" in after[1].partition("%25")[0] or ("%" in after[1] and ":" not in after[1]):  # except in an IPv6 zone
        raise RedirectError("The server redirects to something that is not a URL", uri=uri, hint=_NAME_IT)
    if not may_be_local:
        _refuse_local(before[1], after[1], uri)
    return Hop(_without_user(url), hop.headers if before == after else _of_any_server(hop.headers))


def too_many_redirects(uri: str) -> RedirectError:
    """Return the error for more than `MAX_REDIRECTS` redirects."""
    return RedirectError(
        f"The server redirects more than {MAX_REDIRECTS} times",
        uri=uri,
        hint="It may be a login without cookies: send a token (headers), or name the object's own URL",
    )


def refused_redirect(location: str, uri: str, *, status: int) -> RedirectError:
    """Return the error for a write that a server answers with the URL of another page, without its secrets."""
    place = redact(urljoin(uri, location)) if location else "no other URL"
    hint = f"If this is the right place, name it in the URL. {_KEEPS}"
    return RedirectError(f"The server redirects the write to {place}", uri=uri, hint=hint, status=status)


def _of_any_server(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that identify the program and hold no login."""
    return {name: value for name, value in headers.items() if name.lower() == "user-agent"}


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port; raises ValueError for a malformed port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def quoted(text: str, reserved: str = _RESERVED) -> str:
    """Quote the characters that a URL cannot hold, and no others: a signature may cover the text of the URL."""
    return quote(_STRAY_PERCENT.sub("%25", text), safe=reserved, errors="surrogateescape")


def _refuse_local(before: str, after: str, uri: str) -> None:
    """Refuse a redirect to an address of this machine, unless the server has such an address itself."""
    locality = _locality(after)
    if locality and locality != _locality(before):
        raise RedirectError(
            f"The server redirects to a {locality} address",
            uri=uri,
            hint="To allow it: storage_options={'local_redirects': True}",
        )


def _locality(host: str) -> str:
    """Return the kind of an address of this machine, in any notation that a resolver accepts; empty for other hosts."""
    host = host.lower().rstrip(".").partition("%")[0]
    if host in _LOOPBACK_NAMES or host.endswith(".localhost"):
        return "loopback"
    if is_metadata_host(host):
        return "metadata server's"
    address: IPv4Address | IPv6Address
    try:
        address = ip_address(host) if ":" in host else IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):  # the host is a name, not an address
        return ""
    address = _embedded(address) or address
    if address.is_loopback or address.is_unspecified:  # 0.0.0.0 reaches this machine, too
        return "loopback"
    if is_metadata_host(str(address)):
        return "metadata server's"
    return "link-local" if address.is_link_local else ""


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads, or None."""
    if isinstance(address, IPv4Address) or int(address) <= 1:  # ``::`` and ``::1`` embed no IPv4 address
        return None
    is_low = any(address in network for network in _EMBEDDING)
    return address.ipv4_mapped or address.sixtofour or (IPv4Address(int(address) & 0xFFFFFFFF) if is_low else None)


def _without_user(url: str) -> str:
    """Remove user and password: a server must not choose the credentials for another server."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
