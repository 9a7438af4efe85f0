"""Describes the refusal of a proxy, for lookups and reads of every storage. Pure.

If a proxy refuses to make a tunnel to a server over TLS, the refusal is certainly the proxy's own. Over plain HTTP the
proxy answers in the server's place. Then only an error code or a request id of the storage shows that an answer comes
from the server.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from streamer.core.errors import AccessDeniedError, HttpStatusError, StorageError
from streamer.core.quoting import printable
from streamer.core.secrets.environment import PROXIES, variable

_STATUSES = frozenset({502, 503, 504})  # RFC 9110, 15.6: statuses of gateways, and of overloaded proxies


def place_of(proxy: str) -> str:
    """Return host and port of a proxy's URL, without its password.

    Example:
        >>> place_of("http://user:password@proxy:3128"), place_of("proxy:3128")
        ('proxy:3128', 'proxy:3128')
    """
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc.rpartition("@")[2]


def named_by(place: str) -> str:
    """Return the variable that names the proxy at this place; otherwise an option does."""
    return next((name for name in PROXIES if place_of(variable(name) or "") == place), "An option of the storage")


def advice_about(status: int | None, place: str = "") -> str:
    """Return the advice about a proxy that sends this status; None stands for no connection to the proxy."""
    if status is None and place:
        return f"{named_by(place)} names it: check that it runs, or name the server's host in NO_PROXY"
    if status is None:
        return "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    if status in (401, 407):
        return "Put them into HTTPS_PROXY (http://user:password@host:port), or into the option that names the proxy"
    return "Ask who runs the proxy, or name the host in NO_PROXY if it can be reached without"


def suspect_proxy(error: StorageError, place_on_way: Callable[[], str]) -> None:
    """Add to a refusal over plain HTTP that a proxy may have sent it, unless the storage certainly sent it."""
    is_of_storage = bool(error.request_id) or (error.code or "").isalpha()  # a code such as SlowDown
    is_of_gateway = isinstance(error, HttpStatusError) and error.status in _STATUSES
    is_denial = isinstance(error, AccessDeniedError) and error.status == 403
    if is_of_storage or error.is_of_proxy or not (is_of_gateway or is_denial) or not (place := place_on_way()):
        return
    place = printable(place)
    if is_of_gateway:
        error.is_of_proxy = True
        error.hint = f"The proxy {place} may have sent this: ask who runs it, or name the host in NO_PROXY"
    else:
        hint = f"it may be a refusal of the proxy {place} on the way: ask who runs the proxy"
        error.hint = f"{error.hint}; or {hint}" if error.hint else hint
