"""What leads to a server: the proxies of the options and of the environment.

An answer says that the server is there on this way, and nothing of another. A proxy that makes no tunnel is told as
that by the storages' clients; a proxy of plain HTTP sends a status that the server might have sent as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from streamer.core.errors import HttpStatusError, OptionError

__all__ = ["Route"]

_VARIABLES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
_STATUSES = frozenset({502, 503, 504})  # RFC 9110, 15.6: of gateways, and of proxies without room
_HINT = "A proxy is asked, and may have sent this: ask who runs it, or name the host in NO_PROXY"


class Route:
    """Tells the ways to a server apart, for all requests with the same options.

    Args:
        server: ``scheme://host:port``.
        options: Of the storage. None of their values is kept.
    """

    def __init__(self, server: str, options: Mapping[str, Any] | None) -> None:
        named = tuple(_proxies_in(options or {}))
        self._server, self._is_named, self._named = server, bool(named), hash(named)

    def number(self) -> int:
        """Return what tells this way from others at this moment: a number, as URLs of proxies hold passwords."""
        of_environment = (os.environ.get(name) for each in _VARIABLES for name in (each, each.upper()))
        return hash((self._named, *of_environment))

    def note_failure(self, error: HttpStatusError) -> None:
        """Note in an error that the proxy may have sent it, unless it has a word or a number of the storage."""
        is_of_storage = bool(error.request_id) or (error.code or "").isalpha()  # SlowDown
        if error.status in _STATUSES and not is_of_storage and not error.is_of_proxy and self._has_plain_proxy():
            error.is_of_proxy, error.hint = True, _HINT

    def _has_plain_proxy(self) -> bool:
        if not self._server.startswith("http://"):
            return False
        from streamer.backends.client.proxy import environment_proxy  # noqa: PLC0415 (only after a failure: 20 ms)

        with suppress(OptionError):  # SOCKS: it sends no status
            return self._is_named or environment_proxy(self._server) is not None
        return False


def _proxies_in(options: Mapping[str, Any], *, are_all: bool = False) -> Iterator[str]:
    """Give what is named as a proxy, at any depth, as each storage has its own option: ``proxies``, ``proxy_auth``."""
    for name, value in options.items():
        is_proxy = are_all or "proxy" in str(name) or "proxies" in str(name)
        if isinstance(value, Mapping):
            yield from _proxies_in(value, are_all=is_proxy)
        elif is_proxy and value:
            yield f"{name} {value}"
