"""The route to a server: the proxies that the options and the environment name.

An answer shows that the server is available on this route, not on another. If a proxy refuses a tunnel, the clients of
the storages report it. A proxy of plain HTTP sends a status that the server might have sent as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from streamer import _native
from streamer.core.errors import OptionError, StorageError
from streamer.core.store.proxies import place_of, suspect_proxy

# Options of these names hold the URL of a proxy of plain HTTP: proxy, proxies={"http": …}; in requests also by host.
_OF_PLAIN_HTTP = re.compile(r"proxy|(http|all)(://.*)?")


class Route:
    """Identifies the route to a server, for all requests with the same options."""

    def __init__(self, server: str, options: Mapping[str, Any] | None) -> None:
        self._server, self._options = server, options or {}
        places = {place_of(value) for name, value in _proxies_in(self._options) if _OF_PLAIN_HTTP.fullmatch(name)}
        self._places = " or ".join(sorted(places))

    def lookup(self) -> _native.Lookup:
        """Return a lookup at the server, on the route that the options and the environment name at this moment."""
        named = sorted({value for _, value in _proxies_in(self._options)})
        return _native.Lookup(self._server.encode("utf-8", "replace"), "\n".join(named))  # a URL may be invalid

    def note_failure(self, error: StorageError) -> None:
        """Note in an error without the storage's error code or request ID that the proxy may have sent the response."""
        if self._is_plain:
            suspect_proxy(error, self._place)

    def answering_proxy(self) -> str:
        """Return the proxy, which decides what server answers; "" over TLS, where a certificate names the server."""
        return self._place() if self._is_plain else ""

    @property
    def _is_plain(self) -> bool:
        return self._server.startswith("http://")

    def _place(self) -> str:
        from streamer.backends.client.proxy import environment_proxy  # noqa: PLC0415 (takes 20 ms: most stores have imported it when it is needed)

        with suppress(OptionError):  # a SOCKS proxy, which sends no status
            return self._places or place_of(environment_proxy(self._server) or "")
        return ""


def _proxies_in(options: Mapping[str, Any], *, are_all: bool = False) -> Iterator[tuple[str, str]]:
    """Yield options that name a proxy, at any depth; each storage has its own names (``proxies``, ``proxy_auth``)."""
    for name, value in options.items():
        is_proxy = are_all or "proxy" in str(name) or "proxies" in str(name)
        if isinstance(value, Mapping):
            yield from _proxies_in(value, are_all=is_proxy)
        elif is_proxy and value:
            yield str(name), str(value)
