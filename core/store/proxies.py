"""What a proxy's refusal is told as, for lookups and reads of every storage. Pure.

A proxy refuses to make a tunnel to a server over TLS; then the refusal is known to be its own. Over plain HTTP it
answers in the server's place, and only a word or a request id of the storage shows that an answer is the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from streamer.core.errors import AccessDeniedError, HttpStatusError, StorageError
from streamer.core.quoting import printable

__all__ = ["advice_about", "place_of", "suspect_proxy"]

_STATUSES = frozenset({502, 503, 504})  # RFC 9110, 15.6: of gateways, and of proxies without room


def place_of(proxy: str) -> str:
    """Return host and port of a proxy's URL, without its password.

    Example:
        >>> place_of("http://user:password@proxy:3128"), place_of("proxy:3128")
        ('proxy:3128', 'proxy:3128')
    """
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}").netloc.rpartition("@")[2]


def advice_about(status: int | None) -> str:
    """Say what to do about a proxy that sends this status, or to which there is no connection (None)."""
    if status is None:
        return "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    if status in (401, 407):
        return "Put them into HTTPS_PROXY (http://user:password@host:port), or into the option that names the proxy"
    return "Ask who runs the proxy, or name the host in NO_PROXY if it can be reached without"


def suspect_proxy(error: StorageError, place_on_way: Callable[[], str]) -> None:
    """Note in a refusal over plain HTTP that a proxy may have sent it, unless it is the storage's own.

    Args:
        error: Of an answer.
        place_on_way: Gives the place of the proxy, and "" if there is none; called only if the error may be its.
    """
    is_of_storage = bool(error.request_id) or (error.code or "").isalpha()  # SlowDown
    is_of_gateway = isinstance(error, HttpStatusError) and error.status in _STATUSES
    is_denial = isinstance(error, AccessDeniedError) and error.status == 403
    if is_of_storage or error.is_of_proxy or not (is_of_gateway or is_denial) or not (place := place_on_way()):
        return
    place = printable(place)
    if is_of_gateway:
        error.is_of_proxy = True
        error.hint = f"The proxy {place} may have sent this: ask who runs it, or name the host in NO_PROXY"
    else:
        hint = f"it may be a refusal of the proxy {place} on the way: ask who runs that"
        error.hint = f"{error.hint}; or {hint}" if error.hint else hint
